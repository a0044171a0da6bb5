"""The termination receipt and the report beside it, as the supervisor writes them inside the sandbox.

Sandbox content is hostile: both parsers take bytes that were already bounded, and believe nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import asdict, frozen

from inspan_core.errors import EvidenceMissing, WireError
from inspan_core.json_shapes import is_array, is_object
from inspan_core.json_text import parse_json

RECEIPT_LIMIT_BYTES = 64 * 1024
"""The supervisor writes a few hundred bytes; an error text may add two thousand."""

PROCESSES_LIMIT_BYTES = 1024 * 1024
PROCESSES_LIMIT = 1024
TEXT_LIMIT = 512


@frozen(kw_only=True)
class CleanupReceipt:
    """``cleanup.json``: whether the harness was proven stopped.

    Attributes:
        cleanup_confirmed: No live process of the harness's group remains and, after a deadline or stop, the
            newly adopted children were drained.
        return_code: The harness's exit code, negative for a signal; None when it never ran.
        error: What went wrong, or None.
        timed_out: Whether the run's deadline fired.
    """

    cleanup_confirmed: bool
    return_code: int | None
    error: str | None
    timed_out: bool


def parse_cleanup_receipt(data: bytes) -> CleanupReceipt:
    """Read a receipt: exactly its four fields, each of its type.

    Raises:
        EvidenceMissing: It is malformed: whether the harness stopped stays unknown.
    """
    try:
        value = parse_json(data, RECEIPT_LIMIT_BYTES)
    except WireError as error:
        raise EvidenceMissing(f"the receipt is malformed: {error}") from error
    types: Mapping[str, tuple[type, ...]] = {
        "cleanup_confirmed": (bool,),
        "return_code": (int, type(None)),
        "error": (str, type(None)),
        "timed_out": (bool,),
    }
    if not is_object(value) or set(value) != set(types):
        raise EvidenceMissing(f"the receipt is malformed: expected exactly the fields {', '.join(types)}")
    for name, allowed in types.items():
        # type() and not isinstance: True is no exit code.
        if type(value[name]) not in allowed:
            raise EvidenceMissing(f"the receipt is malformed: {name} is a {type(value[name]).__name__}")
    return CleanupReceipt(**value)


@frozen(kw_only=True)
class ProcessEntry:
    """One process of the report. Neither its arguments nor its environment leave the sandbox.

    Attributes:
        pid: In the sandbox's pid namespace.
        name: The command name, at most 15 bytes of the kernel's.
        reason: Why it was killed, preserved or left.
        parent: Its parent's pid, or None.
        group: Its process group, or None.
        session: Its session, or None.
        start_ticks: When it started, in clock ticks after boot, or None.
    """

    pid: int
    name: str | None = None
    reason: str | None = None
    parent: int | None = None
    group: int | None = None
    session: int | None = None
    start_ticks: int | None = None


@frozen(kw_only=True)
class ProcessesReport:
    """``processes.json``: what the supervisor killed, preserved, and found unfinished at a natural exit."""

    killed: Sequence[ProcessEntry] = ()
    preserved: Sequence[ProcessEntry] = ()
    unfinished: Sequence[ProcessEntry] = ()

    def to_json(self) -> dict[str, Any]:
        """Lists of objects, unknown values left out."""
        return {
            kind: [
                {key: item for key, item in asdict(entry).items() if item is not None} for entry in entries
            ]
            for kind, entries in (
                ("killed", self.killed),
                ("preserved", self.preserved),
                ("unfinished", self.unfinished),
            )
        }


def parse_processes(data: bytes) -> ProcessesReport | None:
    """Read a report, leaving out what does not fit; None when it is no report at all."""
    try:
        value = parse_json(data, PROCESSES_LIMIT_BYTES)
    except WireError:
        return None
    if not is_object(value):
        return None
    return ProcessesReport(
        killed=_entries(value.get("killed")),
        preserved=_entries(value.get("preserved")),
        unfinished=_entries(value.get("unfinished")),
    )


def _entries(value: Any) -> tuple[ProcessEntry, ...]:
    if not is_array(value):
        return ()
    found: list[ProcessEntry] = []
    for item in value[:PROCESSES_LIMIT]:
        if not is_object(item) or type(item.get("pid")) is not int:
            continue
        numbers = {
            key: item[key]
            for key in ("pid", "parent", "group", "session", "start_ticks")
            if type(item.get(key)) is int
        }
        texts = {key: item[key][:TEXT_LIMIT] for key in ("name", "reason") if isinstance(item.get(key), str)}
        found.append(ProcessEntry(**numbers, **texts))
    return tuple(found)
