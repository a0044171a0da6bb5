"""The hooks of inspan. Every name starts with `inspan_`; hook functions are plain `def`.

A hook that does I/O *returns an awaitable*: pluggy never awaits, so an `async def` hook function works
because calling it returns one. A harness has exactly one implementation of each harness hook, in its own
plugin; wrappers (``@hookimpl(wrapper=True)``) may come from any installed plugin and receive, and may
replace, that awaitable.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pluggy

from inspan_core.harness import (
    ActivationContext,
    CollectContext,
    HarnessContext,
    HarnessSpec,
    ParsedActivation,
    ParseInput,
    SandboxCommand,
)
from inspan_core.sandbox import SandboxProvider

PROJECT = "inspan"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec(firstresult=True)
def inspan_harness() -> HarnessSpec:  # type: ignore[empty-body]
    """Declare the harness. Called once, when plugins are loaded.

    Example::

        @hookimpl
        def inspan_harness():
            return HarnessSpec(name="echo", version="1", model_api="chat_completions", level=2,
                               request_fields={"input": "applied", "metadata": "applied"})
    """


@hookspec(firstresult=True)
def inspan_install(context: HarnessContext) -> Awaitable[Mapping[str, Any]]:  # type: ignore[empty-body]
    """Make the pinned runtime ready in the sandbox. Called at every seed, before the session is published.

    Returns:
        An awaitable of a JSON object that `inspan_stage` finds as ``context.runtime`` (paths, versions).

    Raises:
        UnsupportedTarget: The sandbox cannot run it (422).
        InstallError: It failed; a retry may help (503).
    """


@hookspec(firstresult=True)
def inspan_stage(context: ActivationContext) -> Awaitable[SandboxCommand]:  # type: ignore[empty-body]
    """Upload the activation's input and say what to run. Called once before each launch, may be repeated.

    Raises:
        RequestRefused: The request cannot be served (422).
    """


@hookspec(firstresult=True)
def inspan_collect(context: CollectContext) -> Awaitable[None]:  # type: ignore[empty-body]
    """Copy artifacts to the host. Called after confirmed termination; repeatable; never starts the harness.

    What was copied before it raises is kept.
    """


@hookspec(firstresult=True)
def inspan_parse(run: ParseInput) -> ParsedActivation:  # type: ignore[empty-body]
    """Turn artifacts into a response and observations. Pure and synchronous; runs in a worker thread.

    A parser that raises becomes a gap and an execution error; the receipt is kept.
    """


@hookspec
def inspan_sandbox_providers() -> Mapping[str, Callable[[Mapping[str, Any]], SandboxProvider]]:  # type: ignore[empty-body]
    """Provider kinds by name, each a factory that takes the options of its configuration block."""


@hookspec
def inspan_observe(transition: Mapping[str, Any]) -> None:
    """See every committed transition; must not block.

    Args:
        transition: ``{"session", "phase", "run", "event", "effects", "at"}``, all JSON values.
    """
