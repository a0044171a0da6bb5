"""Time budgets that requests and configurations name."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

from inspan_core.errors import RequestRefused

METADATA_KEY = "agent_timeout_sec"
OWNED_SANDBOX_MARGIN_S = 600.0


def resolve_agent_timeout(metadata: Mapping[str, str] | None, ceiling: float) -> float:
    """The run's budget in seconds: what the request's metadata asks for, at most `ceiling`.

    Args:
        metadata: The request's metadata; ``agent_timeout_sec`` is a decimal number above zero.
        ceiling: The configuration's `timeout` in seconds.

    Raises:
        RequestRefused: The value is no such number.
    """
    text = (metadata or {}).get(METADATA_KEY)
    if text is None:
        return ceiling
    try:
        asked = float(text)
    except ValueError:
        asked = float("nan")
    if not isfinite(asked) or asked <= 0:
        raise RequestRefused(
            f"metadata.{METADATA_KEY} is {text!r}; expected a number of seconds above 0",
            field=f"metadata.{METADATA_KEY}",
        )
    return min(asked, ceiling)


def owned_sandbox_ttl_s(install_timeout_s: float, runner_timeout_s: float) -> float:
    """How long an owned sandbox may live when the configuration names no ``ttl_s``."""
    return install_timeout_s + runner_timeout_s + OWNED_SANDBOX_MARGIN_S


def lifetime_fault(ttl_s: float | None, install_timeout_s: float, runner_timeout_s: float) -> str | None:
    """Say that an owned sandbox may end before its run does; None where it cannot."""
    needed_s = install_timeout_s + runner_timeout_s
    if ttl_s is None or ttl_s >= needed_s:
        return None
    return (
        f"ttl_s is {ttl_s:g}, but installation and run may take {needed_s:g} seconds: "
        "the sandbox may end before its run"
    )
