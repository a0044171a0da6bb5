"""The termination receipt and the report beside it, as the supervisor writes them inside the sandbox.

Sandbox content is hostile: both parsers take bytes that were already bounded, and believe nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import asdict, field, frozen

from inspan_core.errors import EvidenceMissing, WireError
from inspan_core.json_shapes import is_array, is_object
from inspan_core.json_text import parse_json

RECEIPT_LIMIT_BYTES = 64 * 1024
"""The supervisor writes a few hundred bytes; an error text may add two thousand."""

PROCESSES_LIMIT_BYTES = 1024 * 1024
PROCESSES_LIMIT = 256
"""Of each kind, as the supervisor lists them."""

NAME_LIMIT = 15
"""Characters: the kernel keeps no more of a command's name."""

PORTS_LIMIT = 64
HIGHEST_PORT = 65535
COUNT_LIMIT = 1_000_000
KINDS = ("killed", "preserved", "unfinished")
REASONS = frozenset(
    {
        "group",
        "adopted",
        "marked",
        "adopted before the end",
        "adopted just before the end",
        "adopted from a tool that was still running",
        "below the harness at its exit",
    }
)
"""All that the supervisor says, besides ``below PID``: other text is not believed to be a reason."""

BELOW = re.compile(r"below [1-9][0-9]{0,9}")


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
        name: The command name, at most 15 characters.
        reason: Why it was killed, preserved or left: one of `REASONS`, or ``below PID``.
        parent: Its parent's pid, or None.
        group: Its process group, or None.
        session: Its session, or None.
        start_ticks: When it started, in clock ticks after boot, or None.
        ports: The TCP ports on which it listened, in order; None where that could not be read.
    """

    pid: int
    name: str | None = None
    reason: str | None = None
    parent: int | None = None
    group: int | None = None
    session: int | None = None
    start_ticks: int | None = None
    ports: tuple[int, ...] | None = None

    def describe(self) -> str:
        """The process in a few words, for example ``server (pid 7, ports 8000; adopted before the end)``."""
        ports = "" if not self.ports else f", ports {' '.join(map(str, self.ports))}"
        name = "unnamed" if self.name is None else "".join(c if c.isprintable() else "?" for c in self.name)
        return f"{name} (pid {self.pid}{ports}; {self.reason or 'no reason given'})"


@frozen(kw_only=True)
class ProcessesReport:
    """``processes.json``: what the supervisor killed, preserved, and found unfinished at a natural exit.

    Attributes:
        dropped: How many processes of a kind the lists leave out, at least; kinds without are absent.
    """

    killed: Sequence[ProcessEntry] = ()
    preserved: Sequence[ProcessEntry] = ()
    unfinished: Sequence[ProcessEntry] = ()
    dropped: Mapping[str, int] = field(factory=dict[str, int])

    def to_json(self) -> dict[str, Any]:
        """Lists of objects, unknown values left out; ``dropped`` only where something was."""
        value: dict[str, Any] = {
            kind: [
                {
                    key: list(item) if key == "ports" else item
                    for key, item in asdict(entry).items()
                    if item is not None
                }
                for entry in getattr(self, kind)
            ]
            for kind in KINDS
        }
        return {**value, "dropped": dict(self.dropped)} if self.dropped else value


def parse_processes(data: bytes) -> ProcessesReport | None:
    """Read a report, leaving out what does not fit; None when it is no report at all."""
    try:
        value = parse_json(data, PROCESSES_LIMIT_BYTES)
    except WireError:
        return None
    if not is_object(value):
        return None
    told = value.get("dropped")
    dropped: dict[str, int] = {}
    for kind in KINDS:
        items = value.get(kind)
        cut = max(len(items) - PROCESSES_LIMIT, 0) if is_array(items) else 0
        count = told.get(kind) if is_object(told) else None
        more = count if type(count) is int and 0 < count <= COUNT_LIMIT else 0
        if cut + more:
            dropped[kind] = cut + more
    return ProcessesReport(
        killed=_entries(value.get("killed")),
        preserved=_entries(value.get("preserved")),
        unfinished=_entries(value.get("unfinished")),
        dropped=dropped,
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
        name, reason = item.get("name"), item.get("reason")
        believed = isinstance(reason, str) and (reason in REASONS or BELOW.fullmatch(reason) is not None)
        found.append(
            ProcessEntry(
                **numbers,
                name=name[:NAME_LIMIT] if isinstance(name, str) else None,
                reason=reason if believed else None,
                ports=_ports(item.get("ports")),
            )
        )
    return tuple(found)


def _ports(value: Any) -> tuple[int, ...] | None:
    if not is_array(value) or len(value) > PORTS_LIMIT:
        return None
    ports = [port for port in value if type(port) is int and 0 < port <= HIGHEST_PORT]
    return tuple(sorted(set(ports))) if len(ports) == len(value) else None
