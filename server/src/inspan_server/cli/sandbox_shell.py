"""`inspan sandbox shell`: open a sandbox and look around in it, line by line."""

from __future__ import annotations

import os
import secrets
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

import anyio

from inspan_core.errors import ExecTimeout, ProviderUnavailable, SandboxError, SandboxGone
from inspan_core.sandbox import Sandbox, SandboxProvider
from inspan_runtime.testing.sandbox_checks import capabilities_of
from inspan_server.cli.exit_codes import DONE, FAILED
from inspan_server.cli.printable import printable
from inspan_server.cli.sandbox_blocks import Blocks, spec_for

LINE_LIMIT_S = 3600.0
WORKDIR = "/workspace"
# Where the line ended, and with what, comes behind a mark that nothing else prints.
RUN = 'cd -- "$2" || exit; eval "$3"; code=$?; printf "\\n%s%s" "$1" "$PWD"; exit $code'


def open_shell(name: str, *, config: str | None, image: str | None, keep: bool) -> int:
    """Make a sandbox, or connect to one, and run the lines of standard input in it.

    Args:
        name: A kind, a block of the configuration, or the id of a sandbox that is there.
        config: An Agent Server's configuration, or None.
        image: For providers that have images.
        keep: Whether a sandbox that was made here stays.

    Returns:
        0; 1 when the sandbox ended under it.

    Raises:
        ConfigError: There is neither such a provider nor such a sandbox.
        ProviderUnavailable: No sandbox can be made here.
    """
    with tempfile.TemporaryDirectory(prefix="inspan-shell-") as folder:
        return anyio.run(_open, Blocks(config), name, image, keep, folder)


async def _open(blocks: Blocks, name: str, image: str | None, keep: bool, folder: str) -> int:
    running = await _running(blocks, name)
    if running is not None:
        provider, descriptor = running
        sandbox = await provider.connect(descriptor)
        try:
            return await _talk(sandbox)
        finally:
            await sandbox.disconnect()
    block = blocks.block(name)
    provider = blocks.provider(block)
    workdir = WORKDIR if "isolation" in capabilities_of(provider) else f"{folder}/work"
    key = f"shell-{secrets.token_hex(8)}"
    spec = spec_for(block, workdir, image, ttl_s=None if keep else LINE_LIMIT_S, labels={"inspan": "shell"})
    sandbox = await provider.create(spec, key=key)
    try:
        return await _talk(sandbox)
    finally:
        with anyio.CancelScope(shield=True):
            if keep:
                print(f"{sandbox.sandbox_id} stays: inspan sandbox shell {sandbox.sandbox_id}")
            else:
                await provider.stop(key)


async def _running(blocks: Blocks, name: str) -> tuple[SandboxProvider, Mapping[str, Any]] | None:
    """Find a sandbox by its id."""
    if name in blocks.names():
        return None
    for each in blocks.names():
        provider = blocks.provider(blocks.block(each))
        try:
            for descriptor in await provider.list({}):
                if descriptor.get("sandbox_id") == name:
                    return provider, descriptor
        except (ProviderUnavailable, SandboxError):
            continue
    return None


async def _talk(sandbox: Sandbox) -> int:
    descriptor = sandbox.descriptor
    print(f"{sandbox.sandbox_id}: {descriptor.get('notice') or descriptor.get('isolation', '')}", flush=True)
    print("type commands, `exit` or the end of input to leave", flush=True)
    folder = str(descriptor.get("workdir") or "/")
    while True:
        line = await _line(f"{sandbox.sandbox_id}:{folder}$ ")
        if line is None or line.strip() == "exit":
            return DONE
        try:
            folder = await _run_line(sandbox, folder, line)
        except SandboxGone as error:
            print(printable(str(error)), file=sys.stderr)
            return FAILED
        except (ExecTimeout, SandboxError) as error:
            print(printable(str(error)), file=sys.stderr)


async def _line(prompt: str) -> str | None:
    if sys.stdin.isatty():
        print(prompt, end="", flush=True)
    line = await anyio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)
    return line.rstrip("\n") if line else None


async def _run_line(sandbox: Sandbox, folder: str, line: str) -> str:
    """Run a line, print what it says, and return the folder in which it ended."""
    mark = secrets.token_hex(16)
    argv = ["sh", "-c", RUN, "sh", mark, folder, line]
    result = await sandbox.exec(argv, timeout_s=LINE_LIMIT_S)
    said, found, where = result.stdout.rpartition(b"\n" + mark.encode())
    _print(said if found else result.stdout, sys.stdout)
    _print(result.stderr, sys.stderr)
    if result.exit_code != 0:
        print(f"[exit {result.exit_code}{', out of memory' if result.out_of_memory else ''}]", flush=True)
    return os.fsdecode(where) if found else folder


def _print(data: bytes, into: Any) -> None:
    """Show output without what would command the terminal."""
    shown = printable(data.decode("utf-8", "replace"))
    if shown:
        print(shown, end="" if shown.endswith("\n") else "\n", file=into, flush=True)
