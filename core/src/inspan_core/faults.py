"""What is wrong with a JSON value, each fault with its place."""

from __future__ import annotations

from typing import Any

Place = tuple[str | int, ...]
Fault = tuple[str, Place, str, Any]
"""A kind (``"missing"``), a relative place, a message, and the offending value."""


class Faults(Exception):
    """What is wrong with one value and what lies in it."""

    def __init__(self, faults: list[Fault]) -> None:
        super().__init__("; ".join(f"{place}: {message}" for _, place, message, _ in faults))
        self.faults = faults

    def under(self, key: str | int) -> list[Fault]:
        """The faults as seen from the enclosing value."""
        return [(kind, (key, *place), message, value) for kind, place, message, value in self.faults]


def fault(kind: str, message: str, value: Any, *place: str | int) -> Faults:
    """One fault of the value at hand, or of what lies in it at `place`."""
    return Faults([(kind, place, message, value)])
