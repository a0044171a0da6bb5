"""Checks of a sandbox's life: creation, keys, labels, connection, end."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys

import anyio

from inspan_core.errors import ConfigError, MountConflict, SandboxConnectError, SandboxError, SandboxGone
from inspan_core.sandbox import Mount, SandboxProvider
from inspan_runtime.testing.sandbox_check_support import (
    EXEC_TIMEOUT_S,
    Check,
    MakeSpec,
    becomes_true,
    expect,
    fresh_key,
    needing,
    opened,
    out,
    refused,
    sh,
)

CONCURRENT_CREATES = 4
PROCESS_LIMIT_S = 40.0
CANCEL_AFTER_S = (0.0, 0.001, 0.005, 0.01, 0.02, 0.03, 0.05)


async def descriptor_is_json_and_enough(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """A connection by it reaches the same sandbox."""
    spec = make_spec()
    async with opened(provider, lambda: spec) as sandbox:
        await out(sandbox, "echo same >mark")
        text = json.dumps(sandbox.descriptor)
        other = await provider.connect(json.loads(text))
        expect(other.sandbox_id == sandbox.sandbox_id, "the connection has another sandbox id")
        expect(await out(other, "cat mark") == b"same\n", "the connection reaches another sandbox")


async def foreign_descriptor_is_refused(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """Of another provider, and no descriptor at all."""
    async with opened(provider, make_spec) as sandbox:
        for foreign in ({**sandbox.descriptor, "provider": "no-such-provider"}, {}, {"sandbox_id": 7}):
            async with refused(SandboxConnectError, f"connect by {foreign}"):
                await provider.connect(foreign)


async def disconnect_leaves_it_alive(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """And a later connection finds it as it was."""
    async with opened(provider, make_spec) as sandbox:
        await out(sandbox, "echo here >mark")
        descriptor = sandbox.descriptor
        await sandbox.disconnect()
        other = await provider.connect(descriptor)
        expect(await other.is_alive(), "a disconnected sandbox is dead")
        expect(await out(other, "cat mark") == b"here\n", "a disconnected sandbox lost its files")


async def one_key_is_one_sandbox(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """Created at the same time, and again later."""
    key = fresh_key()
    spec = make_spec()
    found: list[str] = []
    async with opened(provider, lambda: spec, key=key) as sandbox:

        async def again() -> None:
            found.append((await provider.create(spec, key=key)).sandbox_id)

        async with anyio.create_task_group() as group:
            for _ in range(CONCURRENT_CREATES):
                group.start_soon(again)
        expect(set(found) == {sandbox.sandbox_id}, f"one key has the sandboxes {found}")


async def racing_creates_of_a_key_are_one(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """No create is first."""
    key, spec, mark = fresh_key(), make_spec(labels={"race": secrets.token_hex(4)}), []

    async def create() -> None:
        mark.append((await provider.create(spec, key=key)).sandbox_id)

    try:
        async with anyio.create_task_group() as group:
            for _ in range(CONCURRENT_CREATES):
                group.start_soon(create)
        expect(len(mark) == CONCURRENT_CREATES and len(set(mark)) == 1, f"racing creates gave {mark}")
        expect(len(await provider.list(spec.labels)) == 1, "racing creates made more than one sandbox")
    finally:
        await provider.stop(key)


async def key_of_a_stopped_sandbox_is_free(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """The next create makes a new one."""
    key, spec = fresh_key(), make_spec()
    async with opened(provider, lambda: spec, key=key) as sandbox:
        await out(sandbox, 'echo old >"$HOME/mark"')
        await sandbox.stop()
        again = await provider.create(spec, key=key)
        found = await sh(again, 'cat "$HOME/mark"')
        expect(found.exit_code != 0, "a new sandbox has the old one's files")


async def list_finds_by_all_labels(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """Only running sandboxes, only with all labels."""
    mark = secrets.token_hex(8)
    async with (
        opened(provider, make_spec, labels={"mark": mark, "role": "a"}) as first,
        opened(provider, make_spec, labels={"mark": mark, "role": "b"}) as second,
    ):

        async def ids(**labels: str) -> set[str]:
            return {str(one["sandbox_id"]) for one in await provider.list(labels)}

        both = {first.sandbox_id, second.sandbox_id}
        expect(len(both) == 2, "two keys have one sandbox")
        expect(await ids(mark=mark) == both, "list does not find both by their common label")
        expect(await ids(mark=mark, role="b") == {second.sandbox_id}, "list does not look at all labels")
        expect(await ids(mark=mark, role="c") == set(), "list finds what carries another value")
        await first.stop()
        expect(await ids(mark=mark) == {second.sandbox_id}, "list shows a stopped sandbox")


async def stop_ends_it_for_everybody(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """Afterwards every operation says that it is gone, and stop succeeds again."""
    async with opened(provider, make_spec) as sandbox:
        expect(await sandbox.is_alive(), "a running sandbox is not alive")
        other = await provider.connect(sandbox.descriptor)
        await sandbox.stop()
        await sandbox.stop()
        for one in (sandbox, other):
            expect(not await one.is_alive(), "a stopped sandbox is alive")
            async with refused(SandboxGone, "exec in a stopped sandbox"):
                await one.exec(["true"], timeout_s=EXEC_TIMEOUT_S)
            async with refused(SandboxGone, "upload to a stopped sandbox"):
                await one.upload("/tmp/x", b"x")
            async with refused(SandboxGone, "download from a stopped sandbox"):
                await one.download("/etc/passwd", limit_bytes=100_000)
        async with refused(SandboxGone, "connect to a stopped sandbox"):
            await provider.connect(sandbox.descriptor)
        await other.stop()


async def stop_by_key_needs_no_sandbox(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """An unknown key is success."""
    key = fresh_key()
    async with opened(provider, make_spec, key=key) as sandbox:
        await provider.stop(key)
        expect(not await sandbox.is_alive(), "a sandbox stopped by its key is alive")
        await provider.stop(key)
        await provider.stop(fresh_key())


async def stop_interrupts_a_running_command(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """The command's caller gets an error, not an exit code."""
    async with opened(provider, make_spec) as sandbox:

        async def run() -> None:
            async with refused(SandboxError, "a command whose sandbox was stopped"):
                await sh(sandbox, "touch started; sleep 600", timeout_s=600.0)

        async with anyio.create_task_group() as group:
            group.start_soon(run)

            async def started() -> bool:
                return (await sh(sandbox, "test -e started")).exit_code == 0

            await becomes_true(started, "the command did not start")
            await sandbox.stop()


async def time_to_live_ends_it(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """Without anybody asking."""
    async with opened(provider, make_spec, ttl_s=1.0) as sandbox:
        expect(await sandbox.is_alive(), "a sandbox ended before its time")

        async def ended() -> bool:
            return not await sandbox.is_alive()

        await becomes_true(ended, "a sandbox outlived its time to live")
        async with refused(SandboxGone, "exec in a sandbox past its time"):
            await sandbox.exec(["true"], timeout_s=EXEC_TIMEOUT_S)


async def cancelled_create_leaves_nothing(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """Cut off at several points; and the key can be used again."""
    labels = {"cancelled": secrets.token_hex(8)}
    for delay_s in CANCEL_AFTER_S:
        key, spec = fresh_key(), make_spec(labels=labels)
        with anyio.move_on_after(delay_s) as scope:
            await provider.create(spec, key=key)
        if scope.cancelled_caught:
            expect(await provider.list(labels) == [], f"a create cancelled after {delay_s} s left a sandbox")
            again = await provider.create(spec, key=key)
            expect(await out(again, "echo on") == b"on\n", "the key of a cancelled create cannot be used")
        await provider.stop(key)
    expect(await provider.list(labels) == [], "a stopped sandbox is listed")


async def unfit_specification_is_refused(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """A relative workdir and a time to live of nothing; nothing is made."""
    labels = {"unfit": secrets.token_hex(8)}
    changes: tuple[dict[str, object], ...] = (
        {"workdir": "relative/dir"},
        {"ttl_s": 0.0},
        {"reach": ("http://192.0.2.1:80",)},
    )
    for change in changes:
        key = fresh_key()
        async with refused((ConfigError, SandboxError), f"create with {change}"):
            await provider.create(make_spec(labels=labels, **change), key=key)
        expect(await provider.list(labels) == [], f"create with {change} left a sandbox")


async def impossible_mount_is_a_conflict(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """A source that does not exist, a target inside workdir, and one target twice."""
    spec = make_spec()
    for mounts in (
        (Mount(source="/no/such/source", target="/inspan-mount"),),
        (Mount(source="/usr", target=f"{spec.workdir}/inside"),),
        (Mount(source="/usr", target="/inspan-mount"), Mount(source="/etc", target="/inspan-mount")),
    ):
        key = fresh_key()
        async with refused(MountConflict, f"create with {mounts}"):
            await provider.create(make_spec(mounts=mounts, workdir=spec.workdir), key=key)


@needing("options")
async def another_process_reaches_it(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """By nothing but its descriptor, as a server does that was started again."""
    spec = make_spec(labels={"process": secrets.token_hex(8)})
    given = {"kind": provider.name, "options": dict(provider.options)}  # type: ignore[attr-defined]
    async with opened(provider, lambda: spec) as sandbox:
        await sandbox.upload(f"{spec.workdir}/mark", b"from here")
        text = json.dumps({**given, "descriptor": sandbox.descriptor, "labels": spec.labels})
        argv = [sys.executable, "-c", _OTHER_PROCESS, text, f"{spec.workdir}/mark"]
        with anyio.fail_after(PROCESS_LIMIT_S):
            run = await anyio.run_process(argv, check=False, stderr=subprocess.STDOUT)
        said = run.stdout.decode("utf-8", "replace").strip()
        expect(said == "from here 1", f"another process found {said[-500:]!r}")
        expect(await sandbox.is_alive(), "a sandbox ended with the process that had connected to it")


_OTHER_PROCESS = """
import anyio, json, sys
from inspan_core.plugins import load_plugins
from inspan_runtime.providers import builtin
async def main():
    given = json.loads(sys.argv[1])
    provider = load_plugins([builtin]).provider_factory(given["kind"])(given["options"])
    sandbox = await provider.connect(given["descriptor"])
    found = await sandbox.download(sys.argv[2], limit_bytes=100)
    print(found.data.decode(), len(await provider.list(given["labels"])))
    await sandbox.disconnect()
    await provider.aclose()
anyio.run(main)
"""


async def racing_stops_all_succeed(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """By the sandbox, by another connection and by the key, at the same time."""
    key = fresh_key()
    async with opened(provider, make_spec, key=key) as sandbox:
        other = await provider.connect(sandbox.descriptor)
        async with anyio.create_task_group() as group:
            for stop in (sandbox.stop, other.stop, sandbox.stop):
                group.start_soon(stop)
            group.start_soon(provider.stop, key)
        expect(not await sandbox.is_alive(), "a sandbox that many stopped is alive")


async def descriptor_holds_no_secret(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """It is written to journals and sent over the network; variables may be keys."""
    secret = secrets.token_hex(16)
    async with opened(provider, make_spec, env={"INSPAN_KEY": secret}) as sandbox:
        expect(secret not in json.dumps(sandbox.descriptor), "the descriptor holds a variable's value")
        expect(secret not in repr(sandbox), "the sandbox's text holds a variable's value")


async def failed_create_can_be_repeated(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """A create that was refused leaves its key free."""
    key = fresh_key()
    async with refused((ConfigError, SandboxError), "create with a relative workdir"):
        await provider.create(make_spec(workdir="relative"), key=key)
    async with opened(provider, make_spec, key=key) as sandbox:
        expect(await sandbox.is_alive(), "the key of a refused create cannot be used")


LIFE_CHECKS: list[Check] = [
    descriptor_is_json_and_enough,
    foreign_descriptor_is_refused,
    disconnect_leaves_it_alive,
    one_key_is_one_sandbox,
    racing_creates_of_a_key_are_one,
    key_of_a_stopped_sandbox_is_free,
    list_finds_by_all_labels,
    stop_ends_it_for_everybody,
    stop_by_key_needs_no_sandbox,
    stop_interrupts_a_running_command,
    time_to_live_ends_it,
    cancelled_create_leaves_nothing,
    unfit_specification_is_refused,
    impossible_mount_is_a_conflict,
    another_process_reaches_it,
    racing_stops_all_succeed,
    descriptor_holds_no_secret,
    failed_create_can_be_repeated,
]
