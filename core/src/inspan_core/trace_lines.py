"""The records of a JSONL artifact: whatever a sandbox may hold, what cannot be read becomes a gap."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from inspan_core.errors import WireError
from inspan_core.harness import Artifacts
from inspan_core.json_text import parse_json
from inspan_core.observations import ObservationGap

LINE_LIMIT_BYTES = 8 * 1024 * 1024
JSON_DEPTH = 64


def read_records(artifacts: Artifacts, name: str, gaps: list[ObservationGap]) -> Iterator[Mapping[str, Any]]:
    """The objects of the file, in order; unreadable lines are counted in one gap of each kind.

    Args:
        gaps: Receives ``trace_line_cut``, ``trace_line_malformed`` and ``trace_bytes_replaced`` as the last
            record has been taken.
    """
    lines = artifacts.files.get(name, b"").split(b"\n")
    if any(problem.name == name and problem.code == "artifact_truncated" for problem in artifacts.problems):
        lines = lines[1:]
    unreadable = replaced = 0
    for number, line in enumerate(lines):
        if not line.strip():
            continue
        value = parse_line(line)
        if value is None:
            text = line.decode("utf-8", "replace")
            value = parse_line(text.encode()) if "\N{REPLACEMENT CHARACTER}" in text else None
            replaced += isinstance(value, Mapping)
        if isinstance(value, Mapping):
            yield value
        elif number == len(lines) - 1:
            gaps.append(ObservationGap(code="trace_line_cut", detail=f"the last line of {name} is cut"))
        else:
            unreadable += 1
    if unreadable:
        detail = f"{unreadable} lines of {name} are not JSON objects"
        gaps.append(ObservationGap(code="trace_line_malformed", detail=detail))
    if replaced:
        detail = f"undecodable bytes in {replaced} lines of {name} were replaced"
        gaps.append(ObservationGap(code="trace_bytes_replaced", detail=detail))


def parse_line(line: bytes) -> Any:
    """One JSON value, or None where there is none."""
    try:
        return parse_json(line, LINE_LIMIT_BYTES, max_depth=JSON_DEPTH, lone_surrogates="replace")
    except WireError:
        return None


def number(value: Any) -> float | None:
    """`value` as a finite float, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e300:
        return None
    return float(value)
