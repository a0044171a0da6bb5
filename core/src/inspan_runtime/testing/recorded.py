"""Recorded runs of a program as a parser is given them, and what to look at in its result: for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inspan_core.harness import ArtifactProblem, Artifacts, ParsedActivation, ParseInput


def recorded_run(
    files: Mapping[str, bytes | None],
    *,
    return_code: int | None = 0,
    timed_out: bool = False,
    interrupted: bool = False,
    request: Mapping[str, Any] | None = None,
    problems: Sequence[ArtifactProblem] = (),
) -> ParseInput:
    """What the parser is given of a run that left `files`; one that is None was not there."""
    return ParseInput(
        artifacts=Artifacts(
            files={name: data for name, data in files.items() if data is not None}, problems=tuple(problems)
        ),
        request=request or {"input": "Do the thing."},
        return_code=return_code,
        timed_out=timed_out,
        interrupted=interrupted,
        model_name="policy",
        sandbox_id="box-1",
    )


def kinds(parsed: ParsedActivation) -> list[str]:
    """Types of the response's items."""
    return [] if parsed.response is None else [item["type"] for item in parsed.response["output"]]


def outputs(parsed: ParsedActivation) -> list[Any]:
    """What the tools answered, in order."""
    items = [] if parsed.response is None else parsed.response["output"]
    return [item["output"] for item in items if item["type"] == "function_call_output"]


def codes(parsed: ParsedActivation) -> list[str]:
    """Codes of the gaps."""
    return [gap.code for gap in parsed.observations.gaps]


def records(parsed: ParsedActivation, kind: str) -> list[Any]:
    """Records of a kind, for example ``"tool_call"``."""
    return [record for record in parsed.observations.records if record.kind == kind]
