"""The standard library's `signal` and `socket` without what makes them slow to import.

Every sandbox starts two interpreters. The public modules import enum and selectors, and `typing` is slow too:
together 8 of 14 ms. The C modules below them have all that is needed.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    import socket
else:
    import _signal as signal
    import _socket as socket

__all__ = ["TYPE_CHECKING", "accept", "signal", "socket"]


def accept(listener: socket.socket) -> socket.socket | None:
    """Return the next connection; None when it is gone again.

    Raises:
        OSError: There is no descriptor for it.
    """
    try:
        fd, _ = listener._accept()  # type: ignore[attr-defined]
    except (BlockingIOError, ConnectionAbortedError):
        return None
    return socket.socket(fileno=fd)
