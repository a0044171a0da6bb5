"""How checks went, of providers and of plugins: run one behind a fence, and print what it says."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import anyio
from attrs import frozen

from inspan_core.errors import ConfigError, ProviderUnavailable
from inspan_runtime.testing.sandbox_check_support import CheckFailed

C = TypeVar("C", bound=Callable[..., Awaitable[None]])
CHECK_LIMIT_S = 180.0
PASSED, BROKEN, LEFT_OUT, UNAVAILABLE = "passed", "FAILED", "left out", "unavailable"


@frozen(kw_only=True)
class Verdict:
    """How a check went.

    Attributes:
        name: The check's name: a sentence of the contract.
        status: ``passed``, ``FAILED``, ``left out`` (what is checked declares that it cannot), or
            ``unavailable`` (this host lacks what it needs).
        message: Why, where it did not pass.
        took_s: Seconds.
    """

    name: str
    status: str
    message: str = ""
    took_s: float = 0.0


def chosen(checks: Sequence[C], words: Sequence[str]) -> list[C]:
    """The checks whose names have one of the words; without words, all.

    Raises:
        ConfigError: There is none.
    """
    found = [one for one in checks if not words or any(word in one.__name__ for word in words)]
    if not found:
        raise ConfigError(f"no check has one of the words {', '.join(words)} in its name")
    return found


async def verdict_of(name: str, check: Callable[[], Awaitable[None]]) -> Verdict:
    """Run a check."""
    started = time.monotonic()
    status, message = PASSED, ""
    try:
        with anyio.fail_after(CHECK_LIMIT_S):
            await check()
    except CheckFailed as error:
        status, message = BROKEN, str(error)
    except ProviderUnavailable as error:
        status, message = UNAVAILABLE, str(error)
    except Exception as error:  # the fence: whatever is raised is a finding about what is checked
        status, message = BROKEN, _said(error)
    return Verdict(name=name, status=status, message=message, took_s=round(time.monotonic() - started, 2))


def _said(error: BaseException) -> str:
    """What an error says, out of the groups of its tasks."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) if isinstance(error, CheckFailed) else f"{type(error).__name__}: {error}"


def print_verdict(verdict: Verdict) -> None:
    """Print a line at once."""
    message = f": {verdict.message}" if verdict.message else ""
    print(f"{verdict.status:<11} {verdict.name.replace('_', ' ')}{message}", flush=True)


def print_counts(name: str, verdicts: Sequence[Verdict]) -> None:
    """Print how many there are of each."""
    counts = {status: sum(one.status == status for one in verdicts) for status in (PASSED, BROKEN)}
    rest = len(verdicts) - sum(counts.values())
    print(f"{name}: {counts[PASSED]} passed, {counts[BROKEN]} failed, {rest} left out or unavailable")
