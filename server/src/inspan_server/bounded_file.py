"""Files that a user names, read up to a bound."""

from __future__ import annotations

from pathlib import Path

from inspan_core.errors import ConfigError


def read_bounded(path: Path, limit_bytes: int) -> bytes:
    """A file's bytes; a device's size says nothing of how much it gives.

    Raises:
        ConfigError: It holds more.
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        data = file.read(limit_bytes + 1)
    if len(data) > limit_bytes:
        raise ConfigError(f"{path} is larger than {limit_bytes} bytes")
    return data
