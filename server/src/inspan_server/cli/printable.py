"""Text of sandboxes, without what would command the terminal that shows it."""

from __future__ import annotations

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def printable(text: str) -> str:
    """Return a text with every control character but tabs and ends of lines replaced."""
    return "".join(one if one.isprintable() or one in "\n\t" else REPLACEMENT for one in text)
