"""The smallest complete inspan plugin: a harness of a hundred lines, installed, run, collected and parsed.

``inspan harness new`` makes your own from it; the README walks through it line by line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

from inspan_core.errors import UnsupportedTarget
from inspan_core.harness import (
    ActivationContext,
    CollectContext,
    HarnessContext,
    HarnessSpec,
    ParsedActivation,
    ParseInput,
    SandboxCommand,
)
from inspan_core.hookspecs import hookimpl
from inspan_core.option_checks import complete_options
from inspan_echo.messages import to_messages
from inspan_echo.transcript import parse_run

__all__ = ["inspan_collect", "inspan_harness", "inspan_install", "inspan_parse", "inspan_stage"]

VERSION = "1"
CONTROLS = {"temperature": "temperature", "top_p": "top_p", "max_output_tokens": "max_tokens"}
"""Request fields that go to the model, and what Chat Completions calls them."""

RUNNER = "sandbox_runner.py"
EVENTS_LIMIT_BYTES = 16 * 1024 * 1024
OUTPUT_LIMIT_BYTES = 1024 * 1024
LOG_LIMIT_BYTES = 256 * 1024


@hookimpl
def inspan_harness() -> HarnessSpec:
    """Say what this harness is and what it does with each request field."""
    return HarnessSpec(
        name="echo",
        version=VERSION,
        model_api="chat_completions",
        level=2,
        request_fields={
            "input": "applied",
            "instructions": "applied",
            **dict.fromkeys(CONTROLS, "applied"),
            "metadata": "ignored",
            "model": "ignored",
            "tool_choice": "ignored",
            "parallel_tool_calls": "ignored",
        },
        builtin_tools=frozenset({"bash"}),
        options={"model": True, "max_turns": 50, "command_timeout_s": 120},
        check_options=check_options,
        summary="Runs the shell commands that the model asks for; a template, and the harness of load tests.",
    )


@hookimpl
async def inspan_install(context: HarnessContext) -> dict[str, Any]:
    """Find the interpreter: the harness needs nothing else."""
    target = await context.installer.target()
    if target.python is None:
        raise UnsupportedTarget(
            "the echo harness needs Python 3.8 or later in the sandbox; "
            f"found none on {target.os} {target.arch}"
        )
    return {"python": target.python}


@hookimpl
async def inspan_stage(context: ActivationContext) -> SandboxCommand:
    """Upload the runner and its input, and say how to start it."""
    options, request = context.options, context.request
    model = {"base_url": context.model_base_url, "name": context.model_name, "key": context.model_key}
    task = {
        "messages": to_messages(request),
        "model": model if options["model"] else None,
        "controls": _controls(request),
        "max_turns": options["max_turns"],
        "command_timeout_s": options["command_timeout_s"],
    }
    await context.upload_text("input.json", json.dumps(task))
    runner = await context.upload_text(RUNNER, _runner_source())
    python = str(context.runtime["python"])
    return SandboxCommand(argv=[python, "-I", "-S", runner], python=python)


@hookimpl
async def inspan_collect(context: CollectContext) -> None:
    """Copy what the runner wrote, each file bounded."""
    await context.download("output.json", limit_bytes=OUTPUT_LIMIT_BYTES)
    await context.download("events.jsonl", limit_bytes=EVENTS_LIMIT_BYTES, tail=True)
    await context.download("output.log", limit_bytes=LOG_LIMIT_BYTES, tail=True)


@hookimpl
def inspan_parse(run: ParseInput) -> ParsedActivation:
    """Turn the events into a response and observations."""
    return parse_run(run)


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse numbers with which no run can do anything."""
    given = complete_options(inspan_harness(), options)
    given.whole_numbers({"max_turns": 1, "command_timeout_s": 1})
    given.truths("model")


def _controls(request: Mapping[str, Any]) -> dict[str, Any]:
    return {theirs: request[ours] for ours, theirs in CONTROLS.items() if request.get(ours) is not None}


def _runner_source() -> str:
    return resources.files(__name__).joinpath(RUNNER).read_text(encoding="utf-8")
