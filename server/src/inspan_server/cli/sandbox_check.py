"""`inspan sandbox check NAME`: whether a provider keeps the contract, and how long its sandboxes take."""

from __future__ import annotations

import itertools
import json
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import anyio
from attrs import asdict, frozen

from inspan_core.errors import ConfigError, ProviderUnavailable
from inspan_core.sandbox import SandboxProvider, SandboxSpec
from inspan_runtime.testing.sandbox_check_support import MakeSpec, fresh_key, opened
from inspan_runtime.testing.sandbox_checks import (
    CAPABILITIES,
    SANDBOX_CHECKS,
    Check,
    CheckFailed,
    capabilities_of,
    needs_of,
)
from inspan_runtime.testing.sandbox_latency import latency_report
from inspan_server.cli.exit_codes import DONE, FAILED
from inspan_server.cli.sandbox_blocks import Blocks, spec_for

CHECK_LIMIT_S = 180.0
PASSED, BROKEN, LEFT_OUT, UNAVAILABLE = "passed", "FAILED", "left out", "unavailable"


@frozen(kw_only=True)
class Verdict:
    """How a check went.

    Attributes:
        name: The check's name: a sentence of the contract.
        status: ``passed``, ``FAILED``, ``left out`` (the provider declares that it cannot), or
            ``unavailable`` (this host lacks what it needs).
        message: Why, where it did not pass.
        took_s: Seconds.
    """

    name: str
    status: str
    message: str = ""
    took_s: float = 0.0


def check_provider(
    name: str,
    *,
    config: str | None,
    image: str | None,
    only: Sequence[str],
    measures: bool,
    as_json: bool,
) -> int:
    """Run the checks and print what they say.

    Args:
        name: A kind, or a block of the configuration.
        config: An Agent Server's configuration, or None.
        image: For providers that have images.
        only: Only checks whose names have one of these words; empty: all.
        measures: Whether latencies are measured.
        as_json: Whether one JSON object is printed.

    Returns:
        0 when all passed, 1 when one failed.

    Raises:
        ConfigError: There is no such provider, or no such check.
        ProviderUnavailable: It cannot make a sandbox here.
    """
    blocks = Blocks(config)
    block = blocks.block(name)
    provider = blocks.provider(block)
    chosen = [one for one in SANDBOX_CHECKS if not only or any(word in one.__name__ for word in only)]
    if not chosen:
        raise ConfigError(f"no check has one of the words {', '.join(only)} in its name")
    with tempfile.TemporaryDirectory(prefix="inspan-check-") as folder:
        numbers = itertools.count()
        is_isolated = "isolation" in capabilities_of(provider)

        def make_spec(**changes: Any) -> SandboxSpec:
            workdir = f"{'/inspan-work' if is_isolated else folder}/{next(numbers)}"
            given = {"workdir": workdir, **changes}
            return spec_for(block, given.pop("workdir"), image, **given)

        verdicts, latency = anyio.run(_run, provider, make_spec, chosen, measures, not as_json)
    if as_json:
        rows = [asdict(one) for one in verdicts]
        print(json.dumps({"provider": name, "checks": rows, "latency_ms": latency}, indent=2))
    else:
        _print_end(name, verdicts, latency)
    return FAILED if any(one.status == BROKEN for one in verdicts) else DONE


async def _run(
    provider: SandboxProvider, make_spec: MakeSpec, chosen: Sequence[Check], measures: bool, tells: bool
) -> tuple[list[Verdict], dict[str, float] | None]:
    async with opened(provider, make_spec, key=fresh_key()):
        """Where none can be made, that is one error, not as many as there are checks."""
    verdicts = []
    for check in chosen:
        verdicts.append(await _one(provider, make_spec, check))
        if tells:
            _print(verdicts[-1])
    latency = await latency_report(provider, make_spec) if measures else None
    await provider.aclose()
    return verdicts, latency


async def _one(provider: SandboxProvider, make_spec: MakeSpec, check: Check) -> Verdict:
    lacking = needs_of(check) - capabilities_of(provider)
    if lacking:
        message = "; ".join(f"the provider does not declare: {CAPABILITIES[one]}" for one in sorted(lacking))
        return Verdict(name=check.__name__, status=LEFT_OUT, message=message)
    started = time.monotonic()
    status, message = PASSED, ""
    try:
        with anyio.fail_after(CHECK_LIMIT_S):
            await check(provider, make_spec)
    except CheckFailed as error:
        status, message = BROKEN, str(error)
    except ProviderUnavailable as error:
        status, message = UNAVAILABLE, str(error)
    except Exception as error:  # the fence: whatever a provider raises is a finding about it
        status, message = BROKEN, _said(error)
    took_s = round(time.monotonic() - started, 2)
    return Verdict(name=check.__name__, status=status, message=message, took_s=took_s)


def _said(error: BaseException) -> str:
    """Return what an error says, out of the groups of its tasks."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    text = f"{type(error).__name__}: {error}"
    return str(error) if isinstance(error, CheckFailed) else text


def _print(verdict: Verdict) -> None:
    message = f": {verdict.message}" if verdict.message else ""
    print(f"{verdict.status:<11} {verdict.name.replace('_', ' ')}{message}", flush=True)


def _print_end(name: str, verdicts: Sequence[Verdict], latency: dict[str, float] | None) -> None:
    if latency is not None:
        print("medians in ms: " + ", ".join(f"{step} {took:g}" for step, took in latency.items()))
    counts = {status: sum(one.status == status for one in verdicts) for status in (PASSED, BROKEN)}
    rest = len(verdicts) - sum(counts.values())
    print(f"{name}: {counts[PASSED]} passed, {counts[BROKEN]} failed, {rest} left out or unavailable")
