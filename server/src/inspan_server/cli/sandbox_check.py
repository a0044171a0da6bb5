"""`inspan sandbox check NAME`: whether a provider keeps the contract, and how long its sandboxes take."""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Sequence
from functools import partial
from typing import Any

import anyio
from attrs import asdict

from inspan_core.sandbox import SandboxProvider, SandboxSpec
from inspan_runtime.testing.sandbox_check_support import MakeSpec, fresh_key, opened
from inspan_runtime.testing.sandbox_checks import (
    CAPABILITIES,
    SANDBOX_CHECKS,
    Check,
    capabilities_of,
    needs_of,
)
from inspan_runtime.testing.sandbox_latency import latency_report
from inspan_server.cli.exit_codes import DONE, FAILED
from inspan_server.cli.sandbox_blocks import Blocks, spec_for
from inspan_server.cli.verdicts import (
    BROKEN,
    LEFT_OUT,
    Verdict,
    chosen,
    print_counts,
    print_verdict,
    verdict_of,
)


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
    checks = chosen(SANDBOX_CHECKS, only)
    with tempfile.TemporaryDirectory(prefix="inspan-check-") as folder:
        numbers = itertools.count()
        is_isolated = "isolation" in capabilities_of(provider)

        def make_spec(**changes: Any) -> SandboxSpec:
            workdir = f"{'/inspan-work' if is_isolated else folder}/{next(numbers)}"
            given = {"workdir": workdir, **changes}
            return spec_for(block, given.pop("workdir"), image, **given)

        verdicts, latency = anyio.run(_run, provider, make_spec, checks, measures, not as_json)
    if as_json:
        rows = [asdict(one) for one in verdicts]
        print(json.dumps({"provider": name, "checks": rows, "latency_ms": latency}, indent=2))
    else:
        _print_end(name, verdicts, latency)
    return FAILED if any(one.status == BROKEN for one in verdicts) else DONE


async def _run(
    provider: SandboxProvider, make_spec: MakeSpec, checks: Sequence[Check], measures: bool, tells: bool
) -> tuple[list[Verdict], dict[str, float] | None]:
    async with opened(provider, make_spec, key=fresh_key()):
        """Where none can be made, that is one error, not as many as there are checks."""
    verdicts = []
    for check in checks:
        verdicts.append(await _one(provider, make_spec, check))
        if tells:
            print_verdict(verdicts[-1])
    latency = await latency_report(provider, make_spec) if measures else None
    await provider.aclose()
    return verdicts, latency


async def _one(provider: SandboxProvider, make_spec: MakeSpec, check: Check) -> Verdict:
    lacking = needs_of(check) - capabilities_of(provider)
    if lacking:
        message = "; ".join(f"the provider does not declare: {CAPABILITIES[one]}" for one in sorted(lacking))
        return Verdict(name=check.__name__, status=LEFT_OUT, message=message)
    return await verdict_of(check.__name__, partial(check, provider, make_spec))


def _print_end(name: str, verdicts: Sequence[Verdict], latency: dict[str, float] | None) -> None:
    if latency is not None:
        print("medians in ms: " + ", ".join(f"{step} {took:g}" for step, took in latency.items()))
    print_counts(name, verdicts)
