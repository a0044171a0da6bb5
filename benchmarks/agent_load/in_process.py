"""Plays sessions straight into the application: in_process.py SESSIONS CLIENTS [STATE_DIR].

Prints the processor milliseconds of a session, the least of some rounds: what is left of the server without
HTTP, the kernel and the client. On a busy machine, count its instructions instead (``valgrind
--tool=cachegrind --cache-sim=no``) for two numbers of sessions, and divide the difference.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
import uuid
from collections.abc import Callable
from typing import Any

import anyio

from agent_load.agent_process import application
from agent_load.client import bodies
from inspan_server.collector import tune_collector

ROUNDS = 5
WARM_UP = 50


class Patient:
    """A client that stays until it has its answer."""

    def watch(self, gone: Callable[[], None]) -> None:
        """It does not go."""

    def unwatch(self) -> None:
        """See `watch`."""


async def post(app: Any, path: str, body: bytes, cookie: bytes) -> bytes:
    """Ask once; the cookie to go on with.

    Raises:
        RuntimeError: The answer is not 200.
    """
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
        "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "",
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2),
        "headers": [(b"content-type", b"application/json"), *([(b"cookie", cookie)] if cookie else [])],
        "extensions": {"inspan.take_body": lambda: body, "inspan.client": Patient()},
    }  # fmt: skip
    given = b""

    async def receive() -> dict[str, Any]:
        await anyio.sleep_forever()  # The body was taken at once, as from a connection.
        raise AssertionError

    async def send(message: dict[str, Any]) -> None:
        nonlocal given
        if message["type"] == "http.response.start":
            if message["status"] != 200:
                raise RuntimeError(f"{path} was answered {message['status']}")
            given = dict(message["headers"])[b"set-cookie"].partition(b";")[0]

    await app(scope, receive, send)
    return given


async def play(app: Any, sessions: int, clients: int) -> None:
    """Play whole sessions, each in order."""
    left = iter(range(sessions))

    async def client() -> None:
        for _ in left:
            cookie = b""
            for path, body in bodies(f"s{uuid.uuid4().hex}"):
                cookie = await post(app, path, body, cookie)

    await asyncio.gather(*(client() for _ in range(clients)))


async def main(sessions: int, clients: int, state_dir: str | None) -> None:
    """Measure, and print it."""
    app = application(state_dir)
    tune_collector()
    async with app.router.lifespan_context(app):
        await play(app, WARM_UP, clients)
        costs = []
        for _ in range(ROUNDS):
            before = time.process_time()
            await play(app, sessions, clients)
            costs.append((time.process_time() - before) / sessions * 1000)
    print(f"{min(costs):.3f}", flush=True)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    anyio.run(main, int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None)
