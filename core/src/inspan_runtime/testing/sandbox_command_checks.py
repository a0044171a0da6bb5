"""Checks of `exec`: status, streams, bounds, deadlines, cancellation."""

from __future__ import annotations

import os

import anyio

from inspan_core.errors import ExecTimeout
from inspan_core.sandbox import SandboxProvider
from inspan_runtime.testing.sandbox_check_support import (
    EXEC_TIMEOUT_S,
    PATIENCE_S,
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
CONCURRENT_EXECS = 50
ARRIVAL_S = 60.0
OUTPUT_MIB = 20
# Variables that a sandbox may well have with the server's value.
SHARED_VARIABLES = {
    "PATH",
    "HOME",
    "LANG",
    "TERM",
    "SHELL",
    "PWD",
    "SHLVL",
    "_",
    "OLDPWD",
    "USER",
    "LOGNAME",
    "TZ",
}


async def exit_codes_are_the_commands_own(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """0, and another number."""
    async with opened(provider, make_spec) as sandbox:
        for code in (0, 3, 255):
            found = (await sh(sandbox, f"exit {code}")).exit_code
            expect(found == code, f"exit {code} was reported as {found}")


async def death_by_signal_is_128_plus_n(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """A command that kills itself."""
    async with opened(provider, make_spec) as sandbox:
        for number in (9, 15):
            found = (await sh(sandbox, f"kill -{number} $$")).exit_code
            expect(found == 128 + number, f"death by signal {number} was reported as {found}")


async def missing_program_is_127(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """By name and by path."""
    async with opened(provider, make_spec) as sandbox:
        for program in ("no-such-program-here", "/no/such/program"):
            found = (await sandbox.exec([program], timeout_s=EXEC_TIMEOUT_S)).exit_code
            expect(found == 127, f"a missing program was reported as {found}")


@needing("processes")
async def program_that_is_no_program_is_126(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """A file without the execute permission."""
    spec = make_spec()
    async with opened(provider, lambda: spec) as sandbox:
        await sandbox.upload(f"{spec.workdir}/plain", b"#!/bin/sh\n", mode=0o644)
        found = (await sandbox.exec([f"{spec.workdir}/plain"], timeout_s=EXEC_TIMEOUT_S)).exit_code
        expect(found == 126, f"a file that cannot be executed was reported as {found}")


@needing("processes")
async def arguments_arrive_unchanged(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """Spaces, quotes, newlines, an empty one, letters outside of ASCII, bytes that are no UTF-8."""
    given = ["a b", "'\"$HOME`id`", "two\nlines", "", "-n", "häß 日本", os.fsdecode(b"\xff\xfe")]
    async with opened(provider, make_spec) as sandbox:
        argv = ["sh", "-c", 'for one; do printf "%s|" "$one"; done', "sh", *given]
        found = (await sandbox.exec(argv, timeout_s=EXEC_TIMEOUT_S)).stdout
        expect(found == b"".join(os.fsencode(one) + b"|" for one in given), f"arguments arrived as {found!r}")


@needing("processes")
async def streams_are_apart_and_binary(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """Every byte value through stdin to stdout, and something else on stderr."""
    data = bytes(range(256)) * 64
    async with opened(provider, make_spec) as sandbox:
        result = await sh(sandbox, "cat; printf 'to err' >&2", stdin=data)
        expect(result.stdout == data, "stdout is not what stdin was")
        expect(result.stderr == b"to err", f"stderr is {result.stderr!r}")
        expect(
            not (result.stdout_truncated or result.stderr_truncated), "short output was reported as truncated"
        )


@needing("processes")
async def stdin_is_empty_and_closed_by_default(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """A reader comes to the end at once."""
    async with opened(provider, make_spec) as sandbox:
        expect(await out(sandbox, "cat; echo end") == b"end\n", "stdin was not empty")


async def unread_stdin_is_no_error(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """A command that ends without reading megabytes of stdin."""
    async with opened(provider, make_spec) as sandbox:
        result = await sandbox.exec(["sh", "-c", "exit 4"], timeout_s=EXEC_TIMEOUT_S, stdin=b"x" * (3 * MIB))
        expect(result.exit_code == 4, f"exit 4 was reported as {result.exit_code}")


@needing("processes")
async def large_stdin_arrives_whole(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """More than any pipe holds."""
    async with opened(provider, make_spec) as sandbox:
        found = await out(sandbox, "wc -c", stdin=b"x" * (3 * MIB + 1))
        expect(int(found) == 3 * MIB + 1, f"{3 * MIB + 1} bytes of stdin arrived as {found!r}")


@needing("processes")
async def environment_is_the_specifications(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """The sandbox's variables, and a command's own, which win."""
    async with opened(provider, make_spec, env={"INSPAN_A": "spec", "INSPAN_B": "spec ü"}) as sandbox:
        found = await out(
            sandbox,
            'printf "%s|%s|%s" "$INSPAN_A" "$INSPAN_B" "$INSPAN_C"',
            env={"INSPAN_A": "own", "INSPAN_C": ""},
        )
        expect(found == "own|spec ü|".encode(), f"the variables were {found!r}")


@needing("processes")
async def servers_environment_is_not_there(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """No variable of this process, unless everybody has it."""
    async with opened(provider, make_spec) as sandbox:
        found = (await out(sandbox, "env")).decode("utf-8", "replace").splitlines()
        names = {line.split("=", 1)[0] for line in found if "=" in line}
        leaked = names & set(os.environ) - SHARED_VARIABLES
        expect(not leaked, f"variables of the server are inside: {sorted(leaked)}")
        expect({"PATH", "HOME", "LANG"} <= names, f"PATH, HOME or LANG is missing in {sorted(names)}")


@needing("processes")
async def home_is_empty_and_writable(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """HOME is nobody else's."""
    async with opened(provider, make_spec) as sandbox:
        found = await out(sandbox, 'ls -A "$HOME" && echo x >"$HOME/written" && cat "$HOME/written"')
        expect(found == b"x\n", f"HOME is not empty or not writable: {found!r}")


@needing("processes")
async def commands_start_in_workdir(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """The workdir is made, and cwd changes it for one command."""
    spec = make_spec()
    async with opened(provider, lambda: spec) as sandbox:
        found = (await out(sandbox, "pwd -P; echo x >probe && cat probe")).decode().splitlines()
        expect(
            found == [spec.workdir, "x"],
            f"a command found itself in {found}, not in a writable {spec.workdir}",
        )
        other = await out(sandbox, "pwd -P", cwd="/usr")
        expect(other == b"/usr\n", f"cwd=/usr was {other!r}")


@needing("processes")
async def missing_cwd_is_the_commands_failure(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """An exit code of 126 or 127 and a word on stderr, not a broken sandbox."""
    async with opened(provider, make_spec) as sandbox:
        result = await sh(sandbox, "true", cwd="/no/such/folder")
        expect(result.exit_code in (126, 127), f"a missing cwd was reported as {result.exit_code}")
        expect(result.stderr != b"", "a missing cwd left nothing on stderr")


@needing("processes")
async def output_is_kept_as_a_bounded_tail(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """Much more than the limit on both streams."""
    script = f"head -c {OUTPUT_MIB * MIB} /dev/zero; printf tail-out; "
    script += f"head -c {8 * MIB} /dev/zero >&2; printf tail-err >&2"
    async with opened(provider, make_spec) as sandbox:
        result = await sh(sandbox, script, output_limit_bytes=1000, timeout_s=60.0)
        expect(
            len(result.stdout) == 1000, f"{len(result.stdout)} bytes of stdout were kept, the limit was 1000"
        )
        expect(result.stdout.endswith(b"\0tail-out"), "stdout is not its tail")
        expect(result.stderr.endswith(b"\0tail-err") and len(result.stderr) == 1000, "stderr is not its tail")
        expect(result.stdout_truncated and result.stderr_truncated, "truncation was not reported")


@needing("processes")
async def output_of_exactly_the_limit_is_whole(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """The bound itself is no truncation."""
    async with opened(provider, make_spec) as sandbox:
        result = await sh(sandbox, "head -c 5000 /dev/zero", output_limit_bytes=5000)
        expect(
            len(result.stdout) == 5000 and not result.stdout_truncated,
            "output of the limit's size was truncated",
        )


@needing("processes")
async def each_command_has_its_own_session(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """It leads its session and process group."""
    async with opened(provider, make_spec) as sandbox:
        found = (await out(sandbox, "echo $$; cat /proc/$$/stat")).split(b"\n")
        group, session = found[1].rsplit(b")", 1)[1].split()[2:4]
        expect(
            group == session == found[0], f"process {found[0]!r} has group {group!r} and session {session!r}"
        )


@needing("processes")
async def deadline_kills_the_whole_group(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """Also children, and one that ignores TERM."""
    spec = make_spec()
    script = "trap '' TERM; sleep 600 & echo $$ $! >pids; wait"
    async with opened(provider, lambda: spec) as sandbox:
        async with refused(ExecTimeout, "a command past its deadline"):
            await sh(sandbox, script, timeout_s=0.5)
        for pid in (await out(sandbox, "cat pids")).split():

            async def dead(pid: bytes = pid) -> bool:
                return not await is_running(sandbox, pid)

            await becomes_true(dead, f"process {pid!r} outlived its deadline")
        expect(await out(sandbox, "echo on") == b"on\n", "the sandbox did not outlive a deadline")


@needing("processes")
async def cancellation_kills_the_whole_group(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """Cancelling the caller is no way to leave a command running."""
    spec = make_spec()
    async with opened(provider, lambda: spec) as sandbox:
        async with anyio.create_task_group() as group:
            group.start_soon(sh, sandbox, "sleep 600 & echo $$ $! >pids.new; mv pids.new pids; wait")

            async def started() -> bool:
                return (await sh(sandbox, "test -e pids")).exit_code == 0

            await becomes_true(started, "the command did not start")
            pids = (await out(sandbox, "cat pids")).split()
            group.cancel_scope.cancel()
        for pid in pids:

            async def dead(pid: bytes = pid) -> bool:
                return not await is_running(sandbox, pid)

            await becomes_true(dead, f"process {pid!r} outlived its caller")


@needing("processes")
async def exec_ends_with_its_own_process(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """Although a child in another session holds the output open; and that child lives on."""
    async with opened(provider, make_spec) as sandbox:
        with anyio.move_on_after(PATIENCE_S) as scope:
            pid = await out(
                sandbox, "setsid sh -c 'while sleep 0.01; do echo late; done' & echo $!", timeout_s=60.0
            )
        expect(not scope.cancelled_caught, "exec waited for a child that holds the output open")
        expect(await is_running(sandbox, pid), "a child in another session did not live on")


@needing("processes")
async def output_before_the_end_is_complete(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """Nothing of what the command wrote is lost because it ended."""
    async with opened(provider, make_spec) as sandbox:
        for _ in range(20):
            result = await sh(sandbox, "head -c 60000 /dev/zero; head -c 60000 /dev/zero >&2")
            sizes = (len(result.stdout), len(result.stderr))
            expect(sizes == (60000, 60000), f"60000 bytes on each stream arrived as {sizes}")


@needing("processes")
async def commands_run_at_the_same_time(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """Many at once: each waits for all others, so none can be queued behind another."""
    spec = make_spec()
    arrive = (
        f"touch here.$1; until [ $(ls here.* | wc -l) -ge {CONCURRENT_EXECS} ]; do sleep 0.05; done; echo $1"
    )
    found: list[int] = []
    async with opened(provider, lambda: spec) as sandbox:

        async def one(number: int) -> None:
            argv = ["sh", "-c", arrive, "sh", str(number)]
            found.append(int((await sandbox.exec(argv, timeout_s=ARRIVAL_S)).stdout))

        try:
            async with anyio.create_task_group() as group:
                for number in range(CONCURRENT_EXECS):
                    group.start_soon(one, number)
        except* ExecTimeout:
            pass
        expect(
            sorted(found) == list(range(CONCURRENT_EXECS)),
            f"only {len(found)} of {CONCURRENT_EXECS} ran at once",
        )


COMMAND_CHECKS: list[Check] = [
    exit_codes_are_the_commands_own,
    death_by_signal_is_128_plus_n,
    missing_program_is_127,
    program_that_is_no_program_is_126,
    arguments_arrive_unchanged,
    streams_are_apart_and_binary,
    stdin_is_empty_and_closed_by_default,
    unread_stdin_is_no_error,
    large_stdin_arrives_whole,
    environment_is_the_specifications,
    servers_environment_is_not_there,
    home_is_empty_and_writable,
    commands_start_in_workdir,
    missing_cwd_is_the_commands_failure,
    output_is_kept_as_a_bounded_tail,
    output_of_exactly_the_limit_is_whole,
    each_command_has_its_own_session,
    deadline_kills_the_whole_group,
    cancellation_kills_the_whole_group,
    exec_ends_with_its_own_process,
    output_before_the_end_is_complete,
    commands_run_at_the_same_time,
]
