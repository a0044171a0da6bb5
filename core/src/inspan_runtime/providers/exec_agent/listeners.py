"""Listen on addresses of this network namespace."""

from __future__ import annotations

from inspan_runtime.providers.exec_agent.lean import TYPE_CHECKING, socket

BACKLOG = 1024

if TYPE_CHECKING:
    from collections.abc import Sequence


def bind_reach(addresses: Sequence[tuple[str, int]]) -> list[socket.socket]:
    """Return listeners on the given (host, port) pairs of this network namespace."""
    listeners = []
    for host, port in addresses:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            listener.listen(BACKLOG)
        except OSError as error:
            message = f"cannot listen on {host}:{port} inside: {error.strerror}"
            raise OSError(error.errno, message) from None
        listeners.append(listener)
    return listeners
