"""`inspan harness check NAME`: whether a plugin keeps the rules, in the kind of sandbox that is asked for."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from attrs import asdict

from inspan_core.errors import ConfigError, InstallError, SandboxError, UnsupportedTarget
from inspan_runtime.testing.harness_checks import (
    HARNESS_CHECKS,
    SHELL_CHECKS,
    Check,
    HarnessCase,
    ShellCall,
    json_call,
)
from inspan_server.agent.wiring import harness_options
from inspan_server.cli.exit_codes import DONE, FAILED, INFRASTRUCTURE
from inspan_server.cli.failure import failed
from inspan_server.cli.harness_try import Place, all_plugins, open_cache, provider_of
from inspan_server.cli.verdicts import (
    BROKEN,
    LEFT_OUT,
    Verdict,
    chosen,
    print_counts,
    print_verdict,
    verdict_of,
)


def check_harness(
    name: str,
    place: Place,
    *,
    shell: str | None,
    options: str | None,
    deadline_s: float,
    only: Sequence[str],
    as_json: bool,
) -> int:
    """Run the checks and print what they say.

    Args:
        name: An installed harness.
        place: Kind of sandbox, image and cache.
        shell: ``TOOL:ARGUMENT``: how a model calls the harness's shell; None: checks of tools are left out.
        options: The harness's options as a JSON object, over its defaults.
        deadline_s: Of a run that a check lets end by its deadline.
        only: Only checks whose names have one of these words; empty: all.
        as_json: Whether one JSON object is printed.

    Returns:
        0 when all passed; 1 when one failed, or the harness cannot be installed; 3 when there is no sandbox.

    Raises:
        PluginError: There is no such harness or sandbox provider.
        ConfigError: An option does not fit, or there is no such check.
    """
    plugins, checks = all_plugins(), chosen(HARNESS_CHECKS, only)
    harness = plugins.harness(name)
    anyio.run(provider_of(plugins, place).aclose)  # What does not fit is told before anything is made.
    fail = partial(failed, "inspan harness check", as_json=as_json)
    with tempfile.TemporaryDirectory(prefix="inspan-check-") as folder:
        case = HarnessCase(
            plugin=harness,
            folder=Path(folder),
            sandbox=str(place["sandbox"]),
            image=place["image"],
            options=harness_options(harness.spec, _options(options)),
            shell_call=_shell_call(shell),
            cache=open_cache(place["cache_dir"], report=partial(print, file=sys.stderr, flush=True)),
            deadline_s=deadline_s,
        )
        try:
            verdicts = anyio.run(_verdicts, case, checks, not as_json)
        except (InstallError, UnsupportedTarget) as error:
            return fail(error, FAILED)
        except SandboxError as error:
            return fail(f"no sandbox to try it in: {error}", INFRASTRUCTURE)
    if as_json:
        rows = [asdict(one) for one in verdicts]
        print(json.dumps({"harness": name, "sandbox": place["sandbox"], "checks": rows}, indent=2))
    else:
        print_counts(f"{name} in {place['sandbox']}", verdicts)
    return FAILED if any(one.status == BROKEN for one in verdicts) else DONE


async def _verdicts(case: HarnessCase, checks: Sequence[Check], tells: bool) -> list[Verdict]:
    async with case.episode():
        """Where it cannot be installed, that is one error, not as many as there are checks."""
    verdicts = []
    for check in checks:
        verdicts.append(await _one(case, check))
        if tells:
            print_verdict(verdicts[-1])
    return verdicts


async def _one(case: HarnessCase, check: Check) -> Verdict:
    if case.shell_call is None and check in SHELL_CHECKS:
        return Verdict(name=check.__name__, status=LEFT_OUT, message="--shell was not given")
    return await verdict_of(check.__name__, partial(check, case))


def _shell_call(given: str | None) -> ShellCall | None:
    if given is None:
        return None
    tool, separator, argument = given.partition(":")
    if not (tool and separator and argument):
        raise ConfigError(f"--shell: {given!r} is not TOOL:ARGUMENT")
    return json_call(tool, argument)


def _options(given: str | None) -> Mapping[str, Any]:
    try:
        options = json.loads(given or "{}")
    except ValueError as error:
        raise ConfigError(f"--options: {given!r} is no JSON: {error}") from error
    if not isinstance(options, dict):
        raise ConfigError(f"--options: {given!r} is no JSON object")
    return options
