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
MOST_LINES = 250_000
"""Events take hundreds of bytes: no harness writes so many lines in 48 MiB, but a task can."""


def last_lines(artifacts: Artifacts, name: str, gaps: list[ObservationGap]) -> list[bytes]:
    """The whole lines of the file that are not empty: the last `MOST_LINES`, since the end decides.

    Args:
        gaps: Receives ``trace_truncated`` when lines before them are left out.
    """
    data = artifacts.files.get(name, b"")
    lines = data.rsplit(b"\n", MOST_LINES + 1)  # What follows the last one is empty.
    if len(lines) > MOST_LINES + 1 and lines[0].strip():
        detail = f"{name} has too many lines: all but the last {MOST_LINES} are left out"
        gaps.append(ObservationGap(code="trace_truncated", detail=detail))
        lines[0] = b""
    elif any(each.name == name and each.code == "artifact_truncated" for each in artifacts.problems):
        lines[0] = b""  # It begins somewhere in a line.
    return [line for line in lines if line.strip()]


def read_records(artifacts: Artifacts, name: str, gaps: list[ObservationGap]) -> Iterator[Mapping[str, Any]]:
    """The objects of the file, in order; unreadable lines are counted in one gap of each kind.

    Args:
        gaps: Receives ``trace_truncated`` first, and ``trace_line_cut``, ``trace_line_malformed`` and
            ``trace_bytes_replaced`` as the last record has been taken.
    """
    whole = artifacts.files.get(name, b"").endswith(b"\n")
    lines = last_lines(artifacts, name, gaps)
    unreadable = replaced = 0
    for number, line in enumerate(lines, 1):
        value = parse_line(line) if line.lstrip().startswith(b"{") else None
        if value is None:
            text = line.decode("utf-8", "replace")
            value = parse_line(text.encode()) if "\N{REPLACEMENT CHARACTER}" in text else None
            replaced += isinstance(value, Mapping)
        if isinstance(value, Mapping):
            yield value
        elif number == len(lines) and not whole:
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
