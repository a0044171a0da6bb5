"""What the sandbox checks share: sandboxes that end with their check, and expectations with a sentence."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio

from inspan_core.sandbox import ExecResult, Sandbox, SandboxProvider, SandboxSpec

MakeSpec = Callable[..., SandboxSpec]
Check = Callable[[SandboxProvider, MakeSpec], Awaitable[None]]

EXEC_TIMEOUT_S = 20.0
PATIENCE_S = 15.0
POLL_S = 0.02


class CheckFailed(AssertionError):
    """The provider breaks the contract; the message says how."""


def expect(claim: bool, sentence: str) -> None:
    """Raise `CheckFailed` with a sentence unless a claim is true."""
    if not claim:
        raise CheckFailed(sentence)


def fresh_key() -> str:
    """Return a key that no other sandbox has."""
    return f"check-{secrets.token_hex(8)}"


@asynccontextmanager
async def opened(
    provider: SandboxProvider, make_spec: MakeSpec, *, key: str | None = None, **changes: Any
) -> AsyncIterator[Sandbox]:
    """A sandbox that is stopped at the end."""
    made = key or fresh_key()
    try:
        yield await provider.create(make_spec(**changes), key=made)
    finally:
        with anyio.CancelScope(shield=True):
            await provider.stop(made)


async def sh(sandbox: Sandbox, script: str, **changes: Any) -> ExecResult:
    """Run a shell script."""
    return await sandbox.exec(["sh", "-c", script], **{"timeout_s": EXEC_TIMEOUT_S, **changes})


async def out(sandbox: Sandbox, script: str, **changes: Any) -> bytes:
    """Return a script's standard output; it must succeed."""
    result = await sh(sandbox, script, **changes)
    expect(result.exit_code == 0, f"{script!r} exited {result.exit_code}: {result.stderr[-300:]!r}")
    return result.stdout


@asynccontextmanager
async def refused(
    kinds: type[BaseException] | tuple[type[BaseException], ...], what: str
) -> AsyncIterator[None]:
    """Expect an error of these kinds."""
    try:
        yield
    except kinds:
        return
    except Exception as error:
        raise CheckFailed(f"{what}: {type(error).__name__} ({error}) instead of {_names(kinds)}") from error
    raise CheckFailed(f"{what}: no error instead of {_names(kinds)}")


async def becomes_true(claim: Callable[[], Awaitable[bool]], sentence: str) -> None:
    """Expect a claim to become true soon."""
    with anyio.move_on_after(PATIENCE_S):
        while not await claim():  # noqa: ASYNC110  # what it waits for is in another process
            await anyio.sleep(POLL_S)
        return
    raise CheckFailed(f"{sentence} (after {PATIENCE_S:g} s)")


async def is_running(sandbox: Sandbox, pid: bytes) -> bool:
    """Whether a process of the sandbox lives; a zombie is dead."""
    found = await sh(sandbox, f"cat /proc/{int(pid)}/stat 2>/dev/null")
    return found.exit_code == 0 and found.stdout.rsplit(b")", 1)[1].split()[0] not in (b"Z", b"X")


def _names(kinds: type[BaseException] | tuple[type[BaseException], ...]) -> str:
    return " or ".join(one.__name__ for one in (kinds if isinstance(kinds, tuple) else (kinds,)))
