"""Tell a command's output from the marks that the script around it writes."""

from __future__ import annotations

from inspan_runtime.providers.exec_agent.commands import Tail

WORD_LIMIT_BYTES = 20


class MarkedStream:
    """Keeps the tail of what a command wrote, up to the mark that says how it ended.

    Args:
        mark: What precedes each word.
        limit_bytes: How much is kept.

    Attributes:
        pid: The command's process, once it was announced (on one of its streams).
        word: How it ended, once that was said.
    """

    def __init__(self, mark: bytes, limit_bytes: int) -> None:
        self._mark = mark
        self._tail = Tail(limit_bytes)
        self._pending = b""
        self.pid: int | None = None
        self.word: bytes | None = None

    def add(self, data: bytes) -> None:
        """Take what arrived; what comes after the last mark is dropped."""
        if self.word is not None:
            return
        self._pending += data
        while (at := self._pending.find(self._mark)) >= 0:
            word, newline, rest = self._pending[at + len(self._mark) :].partition(b"\n")
            self._release(at)
            if not newline:
                if len(word) > WORD_LIMIT_BYTES:  # Not a mark of ours.
                    self._release(len(self._mark))
                    continue
                return
            self._pending = rest
            if not word.startswith(b"p"):
                self.word, self._pending = word, b""
                return
            self.pid = int(word[1:]) if word[1:].isdigit() else None
        self._release(max(0, len(self._pending) - len(self._mark)))

    def _release(self, size: int) -> None:
        """Take so many bytes, which no mark begins in, out of what is pending."""
        self._tail.add(self._pending[:size])
        self._pending = self._pending[size:]

    def take(self) -> tuple[bytes, bool]:
        """Return (the kept bytes, whether some were dropped)."""
        if self.word is None:
            self._tail.add(self._pending)
            self._pending = b""
        return self._tail.take()
