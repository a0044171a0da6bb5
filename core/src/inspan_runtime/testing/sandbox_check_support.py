"""What the sandbox checks share: sandboxes that end with their check, and expectations with a sentence."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import anyio

from inspan_core.sandbox import ExecResult, Sandbox, SandboxProvider, SandboxSpec
from inspan_runtime.testing.processes import is_dead

MakeSpec = Callable[..., SandboxSpec]
Check = Callable[[SandboxProvider, MakeSpec], Awaitable[None]]

EXEC_TIMEOUT_S = 20.0
PATIENCE_S = 15.0
POLL_S = 0.02


CAPABILITIES = {
    "processes": "a real shell with real processes and links",
    "options": "another process can make the same provider, from its `name` and its `options`",
    "isolation": "the host's files, processes and network are not there",
    "reach": "URLs of the host's loopback are reached as the specification says",
    "late_reach": "so are others later, one by one (`inspan_core.sandbox.ReachingSandbox`)",
    "mounts": "host paths are shown inside",
    "limits": "processor, memory and processes are limited",
    "usage": "sandboxes tell what they have used (`inspan_core.sandbox.MeteredSandbox`)",
}
"""What a provider may be unable to do, by the names that its `capabilities` has."""


UNEXPECTED = frozenset({"options", "usage", "late_reach"})
"""What a provider is asked for only when it says that it can do it."""


class CheckFailed(AssertionError):
    """What is checked breaks a rule; the message says which and how."""


def expect(claim: bool, sentence: str) -> None:
    """Raise `CheckFailed` with a sentence unless a claim is true."""
    if not claim:
        raise CheckFailed(sentence)


def needing(*capabilities: str) -> Callable[[Check], Check]:
    """Mark a check that only a provider with these capabilities can keep."""

    def mark(check: Check) -> Check:
        check.needs = frozenset(capabilities)  # type: ignore[attr-defined]
        return check

    return mark


def needs_of(check: Check) -> frozenset[str]:
    """Return what a check's provider has to be able to do."""
    return getattr(check, "needs", frozenset())


def capabilities_of(provider: SandboxProvider) -> frozenset[str]:
    """Return what a provider declares; one that declares nothing can do all but `UNEXPECTED`."""
    declared: Iterable[str] | None = getattr(provider, "capabilities", None)
    return frozenset(CAPABILITIES) - UNEXPECTED if declared is None else frozenset(declared)


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
    return found.exit_code == 0 and not is_dead(found.stdout)


def _names(kinds: type[BaseException] | tuple[type[BaseException], ...]) -> str:
    return " or ".join(one.__name__ for one in (kinds if isinstance(kinds, tuple) else (kinds,)))
