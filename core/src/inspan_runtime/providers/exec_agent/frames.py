"""Frames: u32 count, then count times (u32 length, bytes). Binary safe, and no json to import."""

from __future__ import annotations

import struct

from inspan_runtime.providers.exec_agent.lean import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

HEAD_LIMIT_BYTES = 8 * 1024 * 1024


def encode(fields: Sequence[bytes]) -> bytes:
    """Return fields (bytes each) as a frame."""
    parts = [struct.pack(">I", len(fields))]
    for one in fields:
        parts.append(struct.pack(">I", len(one)))
        parts.append(one)
    return b"".join(parts)


def decode(buffer: bytes | bytearray) -> tuple[list[bytes], int] | None:
    """Return (fields, bytes used), or None when the frame is not complete; ValueError when it is too long."""
    if len(buffer) < 4:
        return None
    (count,) = struct.unpack_from(">I", buffer)
    at = 4
    fields: list[bytes] = []
    if count > HEAD_LIMIT_BYTES // 4:
        raise ValueError("too many fields")
    for _ in range(count):
        if len(buffer) < at + 4:
            return None
        (size,) = struct.unpack_from(">I", buffer, at)
        if at + 4 + size > HEAD_LIMIT_BYTES:
            raise ValueError("frame too long")
        if len(buffer) < at + 4 + size:
            return None
        fields.append(bytes(buffer[at + 4 : at + 4 + size]))
        at += 4 + size
    return fields, at
