"""A wrapper for every installed harness: what looks like a secret leaves neither in responses nor in argv.

A plugin that declares no harness of its own. Package it with one entry point in the group ``inspan``
(``redact = "redact_secrets"``) and install it beside the server: it wraps the hooks of each harness.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Generator
from typing import Any

from attrs import evolve

from inspan_core.codec import decode, encode
from inspan_core.errors import ConfigError
from inspan_core.harness import ActivationContext, ParsedActivation, ParseInput, SandboxCommand
from inspan_core.hookspecs import hookimpl
from inspan_core.observations import AgentObservationBundle, ObservationGap

SECRET = re.compile(
    r"AKIA[0-9A-Z]{16}"  # access keys of a cloud
    r"|gh[pousr]_[A-Za-z0-9]{36}"  # tokens of a code host
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----",
    re.DOTALL,
)
MARK = "[redacted]"


@hookimpl(wrapper=True)
def inspan_parse(run: ParseInput) -> Generator[None, ParsedActivation, ParsedActivation]:
    """A synchronous hook: its result comes out of ``yield``."""
    parsed = yield
    observations = encode(parsed.observations)
    found = _count([parsed.response, parsed.detail, observations])
    if not found:
        return parsed
    clean = decode(AgentObservationBundle, _clean(observations))
    gap = ObservationGap(code="secret_redacted", detail=f"{found} passages looked like secrets")
    return evolve(
        parsed,
        response=_clean(parsed.response),
        detail=_clean(parsed.detail),
        observations=evolve(clean, gaps=(*clean.gaps, gap)),
    )


@hookimpl(wrapper=True)
def inspan_stage(
    context: ActivationContext,
) -> Generator[None, Awaitable[SandboxCommand], Awaitable[SandboxCommand]]:
    """A hook that does I/O: an awaitable comes out of ``yield``, and another takes its place."""
    staged = yield
    return _checked(staged)


async def _checked(staged: Awaitable[SandboxCommand]) -> SandboxCommand:
    command = await staged
    if _count([*command.argv, *command.env.values()]):
        raise ConfigError(
            "staging put something that looks like a secret into the command or its environment"
        )
    return command


def _count(value: Any) -> int:
    if isinstance(value, str):
        return len(SECRET.findall(value))
    if isinstance(value, dict):
        return sum(_count(each) for each in (*value, *value.values()))
    return sum(_count(each) for each in value) if isinstance(value, list | tuple) else 0


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return SECRET.sub(MARK, value)
    if isinstance(value, dict):
        return {_clean(key): _clean(each) for key, each in value.items()}
    return [_clean(each) for each in value] if isinstance(value, list | tuple) else value
