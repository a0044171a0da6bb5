"""A record of the journal's log as bytes and back.

A record is one `Journal.append`: the event and all contents that were kept before it, so it is there whole or
not at all. On disk it is a head (magic, length, checksum, number) and its parts, one after the other. Numbers
rise by one from record to record and are never used again, so a record tells what it is and what is missing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, TypeAlias
from zlib import crc32

BEGIN: Final = 1
"""A session begins: the value is its name."""

EVENT: Final = 2
"""An event of a session as JSON; ``number`` is its place among the session's events."""

KEEP: Final = 3
"""A content is set."""

REMOVE: Final = 4
"""A content is removed."""

FORGET: Final = 5
"""All that is kept of a session is removed."""

MAGIC: Final = b"\xf1iR3"
_HEAD = struct.Struct("<4sIIQ")
_PART = struct.Struct("<BQII")
_pack_head, _pack_part = _HEAD.pack, _PART.pack
KINDS = frozenset({BEGIN, EVENT, KEEP, REMOVE, FORGET})


Part: TypeAlias = tuple[int, int, int, str, bytes]
"""What a record says of one session: the kind; the session's number in this journal; of an event its number,
else 0; of a content its name, else nothing; and, last, the name of a session that begins, an event's JSON, or
the content."""


class Record(NamedTuple):
    """One record, and where it ends in the log."""

    number: int
    parts: tuple[Part, ...]
    end: int


class Broken(NamedTuple):
    """Where the readable records end although the log goes on, and why."""

    offset: int
    reason: str


def event_body(session: int, number: int, text: bytes) -> bytes:
    """The part of an event."""
    return _pack_part(EVENT, session, number, len(text)) + text


def encode_parts(parts: Iterable[Part]) -> bytes:
    """Parts, one after the other."""
    pieces: list[bytes] = []
    for kind, session, number, name, value in parts:
        label = name.encode()
        pieces += (_pack_part(kind, session, len(label) if label else number, len(value)), label, value)
    return b"".join(pieces)


def encode_record(number: int, body: bytes) -> bytes:
    """A record from its parts' bytes."""
    return _pack_head(MAGIC, len(body), crc32(body, number & 0xFFFFFFFF), number) + body


def read_records(data: bytes, start: int) -> Iterator[Record | Broken]:
    """The records of a log from `start` on; where one cannot be read, `Broken` comes last."""
    offset, size, expected = start, len(data), None
    while offset < size:
        if size - offset < _HEAD.size:
            yield Broken(offset, "it ends within a record's head")
            return
        magic, length, checksum, number = _HEAD.unpack_from(data, offset)
        end = offset + _HEAD.size + length
        if magic != MAGIC or (expected is not None and number != expected):
            yield Broken(
                offset,
                "expected the head of a record"
                if expected is None or magic != MAGIC
                else f"expected record {expected}, found {number}",
            )
            return
        if end > size:
            yield Broken(offset, f"record {number} ends {end - size} bytes after the file")
            return
        body = data[end - length : end]
        parts = _parts(body) if crc32(body, number & 0xFFFFFFFF) == checksum else None
        if parts is None:
            yield Broken(offset, f"record {number} does not fit its checksum")
            return
        yield Record(number, parts, end)
        offset, expected = end, number + 1


def _parts(body: bytes) -> tuple[Part, ...] | None:
    """The parts of a record's bytes; None if they are none."""
    parts: list[Part] = []
    offset = 0
    try:
        while offset < len(body):
            kind, session, number, length = _PART.unpack_from(body, offset)
            offset += _PART.size
            name = ""
            if kind in (KEEP, REMOVE):
                name = body[offset : offset + number].decode()
                offset, number = offset + number, 0
            value = body[offset : offset + length]
            offset += length
            if kind not in KINDS or offset > len(body):
                return None
            parts.append((kind, session, number, name, value))
    except (struct.error, UnicodeDecodeError):
        return None
    return tuple(parts)
