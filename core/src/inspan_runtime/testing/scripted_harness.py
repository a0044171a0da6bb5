"""The smallest harness that can be fuzzed: one input file, one output file, and a model of its program."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from inspan_core.findings import Outcome
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
from inspan_core.observations import AgentObservationBundle
from inspan_runtime.testing.fake_supervisor import ProgramStart

NAME = "scripted"
PYTHON = "/usr/bin/python3"
LIMIT_BYTES = 64 * 1024


class ScriptedHarness:
    """A plugin, for `load_plugins` or `fuzz_lifecycle`."""

    @hookimpl
    def inspan_harness(self) -> HarnessSpec:
        """Declare it."""
        return HarnessSpec(
            name=NAME,
            version="1",
            model_api="responses",
            level=2,
            request_fields={"input": "applied", "metadata": "ignored"},
        )

    @hookimpl
    async def inspan_install(self, context: HarnessContext) -> Mapping[str, Any]:
        """Look whether the sandbox answers; there is nothing to install."""
        await context.sandbox.exec(["true"], timeout_s=10.0)
        return {"python": PYTHON}

    @hookimpl
    async def inspan_stage(self, context: ActivationContext) -> SandboxCommand:
        """Upload the input."""
        path = await context.upload_text("input.json", json.dumps(context.request["input"]))
        return SandboxCommand(argv=["/bin/scripted", path], python=str(context.runtime["python"]))

    @hookimpl
    async def inspan_collect(self, context: CollectContext) -> None:
        """Copy the output, in two files."""
        await context.download("progress.log", limit_bytes=LIMIT_BYTES, tail=True)
        await context.download("output.json", limit_bytes=LIMIT_BYTES)

    @hookimpl
    def inspan_parse(self, run: ParseInput) -> ParsedActivation:
        """Complete with an output, incomplete at the deadline, failed otherwise."""
        output = run.artifacts.files.get("output.json")
        outcome = Outcome.COMPLETED if output is not None else Outcome.FAILED
        if run.timed_out:
            outcome = Outcome.INCOMPLETE
        text = "" if output is None else output.decode()
        return ParsedActivation(
            outcome=outcome,
            response=None if outcome is Outcome.FAILED else {"object": "response", "output": [text]},
            observations=AgentObservationBundle(source=NAME),
            detail="there is no output.json" if outcome is Outcome.FAILED else None,
        )


def scripted_program(start: ProgramStart) -> Iterable[tuple[float, str, bytes]]:
    """What its program writes: progress half-way, and its input as output at the end."""
    yield 0.5, "progress.log", b"half\n"
    yield 1.0, "progress.log", b"half\nwhole\n"
    yield 1.0, "output.json", start.files.get("input.json", b"null")
