"""Checks of `exec`: what is left alone, what is not, and whatever else a command may be."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from typing import Any

import anyio

from inspan_core.errors import ExecTimeout, UsageError
from inspan_core.sandbox import Sandbox, SandboxProvider
from inspan_runtime.testing.sandbox_check_support import (
    EXEC_TIMEOUT_S,
    Check,
    MakeSpec,
    becomes_true,
    expect,
    is_running,
    needing,
    opened,
    out,
    refused,
    sh,
)

MIB = 1024 * 1024
GIGABYTE_TIMEOUT_S = 120.0
LONG_ARGUMENT_CHARS = 120_000
IMPOSSIBLE: Sequence[tuple[str, dict[str, Any]]] = (
    ("no program", {"argv": []}),
    ("an empty program", {"argv": [""]}),
    ("a NUL in an argument", {"argv": ["echo", "a\0b"]}),
    ("a variable without a name", {"argv": ["true"], "env": {"": "x"}}),
    ("a variable with = in its name", {"argv": ["true"], "env": {"a=b": "x"}}),
)


async def own_exit_code_is_no_timeout(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """124, 137 and 143 are what a command may say by itself."""
    async with opened(provider, make_spec) as sandbox:
        for code in (124, 137, 143):
            try:
                found = (await sh(sandbox, f"exit {code}")).exit_code
            except ExecTimeout as error:
                expect(False, f"exit {code} was taken for a timeout: {error}")
            expect(found == code, f"exit {code} was reported as {found}")


@needing("processes")
async def signals_have_their_usual_effect(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """A command is not started with signals ignored or blocked, as a server's own may be."""
    async with opened(provider, make_spec) as sandbox:
        for number in (1, 2, 10, 13, 14, 15):  # Not 3: some shells ignore it by themselves.
            found = (await sh(sandbox, f"kill -{number} $$; echo survived")).exit_code
            expect(found == 128 + number, f"signal {number} was reported as {found}")


@needing("processes")
async def long_arguments_arrive(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """As long as the kernel takes them, and some hundred."""
    async with opened(provider, make_spec) as sandbox:
        for argv in (["x" * LONG_ARGUMENT_CHARS], ["y" * 500] * 200):
            script = 'for one; do n=$((n + ${#one})); done; echo "$# $n"'
            result = await sandbox.exec(["sh", "-c", script, "sh", *argv], timeout_s=EXEC_TIMEOUT_S)
            wanted = b"%d %d\n" % (len(argv), sum(map(len, argv)))
            expect(result.stdout == wanted, f"arguments arrived as {result.stdout!r}, not {wanted!r}")


async def impossible_commands_are_refused(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """As the caller's fault, before anything runs."""
    async with opened(provider, make_spec) as sandbox:
        for what, given in IMPOSSIBLE:
            async with refused(UsageError, f"exec with {what}"):
                await sandbox.exec(**given, timeout_s=EXEC_TIMEOUT_S)


@needing("processes")
async def a_gigabyte_of_output_is_drained(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """The command comes to its end; what is kept is bounded."""
    async with opened(provider, make_spec) as sandbox:
        result = await sh(
            sandbox,
            f"head -c {1024 * MIB} /dev/zero && printf end",
            output_limit_bytes=64 * 1024,
            timeout_s=GIGABYTE_TIMEOUT_S,
        )
        expect(result.exit_code == 0, f"a gigabyte of output ended with {result.exit_code}")
        expect(len(result.stdout) == 64 * 1024 and result.stdout_truncated, "the output was not bounded")
        expect(result.stdout.endswith(b"\0end"), "the end of a gigabyte was lost")


@needing("processes")
async def started_service_lives_on(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """What a command left running, in its own session or not, outlives it and later commands."""
    async with opened(provider, make_spec) as sandbox:
        script = "sleep 600 & a=$!; setsid sleep 600 & b=$!; echo $a $b"
        pids = (await out(sandbox, f"({script}) 2>/dev/null")).split()
        await out(sandbox, "true")
        for pid in pids:
            expect(await is_running(sandbox, pid), f"process {pid!r} ended with the command that started it")


@needing("processes")
async def one_cancellation_is_nobody_elses(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """Another command of the same sandbox, and its children, go on."""
    async with opened(provider, make_spec) as sandbox:
        found: list[bytes] = []

        async def other() -> None:
            script = "sleep 600 & echo $! >child; until [ -e go ]; do sleep 0.02; done; echo on"
            found.append(await out(sandbox, script))

        async with anyio.create_task_group() as group:
            group.start_soon(other)
            await _appears(sandbox, "child")
            with anyio.move_on_after(EXEC_TIMEOUT_S) as scope:
                async with anyio.create_task_group() as cut:
                    cut.start_soon(sh, sandbox, "touch begun; sleep 600")
                    await _appears(sandbox, "begun")
                    scope.cancel()
            expect(await is_running(sandbox, await out(sandbox, "cat child")), "a child of another ended")
            await out(sandbox, "touch go")
        expect(found == [b"on\n"], f"another command ended as {found}")


async def _appears(sandbox: Sandbox, name: str) -> None:
    async def is_there() -> bool:
        return (await sh(sandbox, f"test -s {name} || test -e {name}")).exit_code == 0

    await becomes_true(is_there, f"{name} did not appear")


@needing("processes")
async def stop_leaves_no_process(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """As far as this host sees them: in sessions of their own, orphaned, without any variable."""
    mark = f"6{int.from_bytes(secrets.token_bytes(5), 'big')}"
    async with opened(provider, make_spec) as sandbox:
        await out(sandbox, f"(sleep {mark} & setsid sleep {mark} & env - setsid sleep {mark} &) 2>/dev/null")

        async def begun() -> bool:
            return (
                await sh(sandbox, f"cat /proc/*/cmdline | tr '\\0' ' ' | grep -q 'sleep {mark}'")
            ).exit_code == 0

        await becomes_true(begun, "the processes did not start")
        await sandbox.stop()
        left = _of_this_host(mark)
        expect(not left, f"processes {left} outlived their sandbox")


def _of_this_host(mark: str) -> list[int]:
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                if file.read() == b"sleep\0" + mark.encode() + b"\0":
                    found.append(int(name))
        except OSError:
            continue
    return found


PROCESS_CHECKS: list[Check] = [
    own_exit_code_is_no_timeout,
    signals_have_their_usual_effect,
    long_arguments_arrive,
    impossible_commands_are_refused,
    a_gigabyte_of_output_is_drained,
    started_service_lives_on,
    one_cancellation_is_nobody_elses,
    stop_leaves_no_process,
]
