"""A lean HTTP client that plays whole sessions: it must cost less than what it measures."""

from __future__ import annotations

import asyncio
import json
import socket
import time
import uuid

from attrs import define, field


@define
class Load:
    """What came of a load.

    Attributes:
        latencies_s: Of whole sessions, in seconds.
        wall_s: Of all of them together.
    """

    latencies_s: list[float] = field(factory=list)
    wall_s: float = 0.0

    @property
    def per_second(self) -> float:
        return len(self.latencies_s) / self.wall_s

    def quantile_ms(self, share: float) -> float:
        ordered = sorted(self.latencies_s)
        return ordered[min(int(len(ordered) * share), len(ordered) - 1)] * 1000


def bodies(name: str) -> list[tuple[str, bytes]]:
    """The three requests of a session."""
    episode = {"rollout_id": name, "attempt": 0}
    seed = {
        "agent_session_id": name, "episode_id": episode, "task_id": {"taskset": "t", "task_id": "x"},
        "tool_accesses": [], "sandbox_access": None,
    }  # fmt: skip
    return [
        ("/v1/agent_sessions", json.dumps(seed).encode()),
        (f"/ng-rollout/{name}/v1/responses", b'{"input": "Say hello"}'),
        (
            "/v1/agent_sessions/close",
            json.dumps({"agent_session_id": name, "episode_id": episode}).encode(),
        ),
    ]


def request(path: str, body: bytes, cookie: str) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nAccept: */*\r\n"
    return f"{head}{cookie}Content-Length: {len(body)}\r\n\r\n".encode() + body


def head_of(data: bytes) -> tuple[int, int, str]:
    """The status, the body's length, and the cookie line to send from now on."""
    lines = data.decode("latin-1").split("\r\n")
    length, cookie = 0, ""
    for line in lines[1:]:
        name, _, value = line.partition(":")
        match name.lower():
            case "content-length":
                length = int(value)
            case "set-cookie":
                cookie = f"Cookie: {value.split(';')[0].strip()}\r\n"
    return int(lines[0].split()[1]), length, cookie


ANSWER_TIMEOUT_S = 60.0
"""A server that does not answer for so long ends the measurement, with an error."""


def answer_of(path: str, received: bytes) -> tuple[int, str] | None:
    """How long an answer is with its head, and the cookie line; None while its head is not whole.

    Raises:
        RuntimeError: It is not 200.
    """
    head, separator, _ = received.partition(b"\r\n\r\n")
    if not separator:
        return None
    status, length, cookie = head_of(head)
    if status != 200:
        raise RuntimeError(f"{path} was answered {status}: {received[:500]!r}")
    return len(head) + len(separator) + length, cookie


def connect(port: int) -> socket.socket:
    wire = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_TIMEOUT_S)
    wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return wire


class LoneConnection:
    """A connection of a client that has nothing else to do: it waits in the kernel, not in an event loop."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._socket = connect(port)

    def post(self, path: str, body: bytes, cookie: str) -> str:
        """The cookie to go on with. A connection that the server has closed is made again."""
        for _ in range(3):
            received = b""
            try:
                self._socket.sendall(request(path, body, cookie))
                while (answer := answer_of(path, received)) is None or len(received) < answer[0]:
                    part = self._socket.recv(65536)
                    if not part:
                        break
                    received += part
                else:
                    return answer[1]
            except ConnectionError:
                pass
            self.close()
            self._socket = connect(self._port)
        raise ConnectionError(f"{path}: the server closes every connection")

    def close(self) -> None:
        self._socket.close()


class Connection:
    """A connection among others; it is kept alive, and made again when the server has closed it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._socket: socket.socket | None = None

    async def post(self, path: str, body: bytes, cookie: str) -> str:
        """See `LoneConnection`."""
        loop = asyncio.get_running_loop()
        for _ in range(3):
            if self._socket is None:
                self._socket = connect(self._port)
                self._socket.setblocking(False)
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                answer = await self._exchange(loop, self._socket, path, request(path, body, cookie))
            if answer is not None:
                return answer
            self.close()
            self._socket = None
        raise ConnectionError(f"{path}: the server closes every connection")

    async def _exchange(
        self, loop: asyncio.AbstractEventLoop, wire: socket.socket, path: str, data: bytes
    ) -> str | None:
        received = b""
        try:
            await loop.sock_sendall(wire, data)
            while (answer := answer_of(path, received)) is None or len(received) < answer[0]:
                part = await loop.sock_recv(wire, 65536)
                if not part:
                    return None
                received += part
        except ConnectionError:
            return None
        return answer[1]

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()


def play(port: int, sessions: int, clients: int, *, steps: int = 3) -> Load:
    """Play whole sessions, each in order on one connection.

    Args:
        port: Of the server, on loopback.
        sessions: How many.
        clients: Each has a connection of its own, and plays one session at a time.
        steps: 1: only seed them, 2: seed and activate, 3: close them too.
    """
    load = Load()
    began = time.perf_counter()
    if clients == 1:
        play_alone(port, sessions, steps, load)
    else:
        asyncio.run(play_together(port, sessions, clients, steps, load))
    load.wall_s = time.perf_counter() - began
    return load


def play_alone(port: int, sessions: int, steps: int, load: Load) -> None:
    connection = LoneConnection(port)
    for _ in range(sessions):
        name, cookie = f"s{uuid.uuid4().hex}", ""
        began = time.perf_counter()
        for path, body in bodies(name)[:steps]:
            cookie = connection.post(path, body, cookie)
        load.latencies_s.append(time.perf_counter() - began)
    connection.close()


async def play_together(port: int, sessions: int, clients: int, steps: int, load: Load) -> None:
    left = iter(range(sessions))

    async def client() -> None:
        connection = Connection(port)
        for _ in left:
            name, cookie = f"s{uuid.uuid4().hex}", ""
            began = time.perf_counter()
            for path, body in bodies(name)[:steps]:
                cookie = await connection.post(path, body, cookie)
            load.latencies_s.append(time.perf_counter() - began)
        connection.close()

    await asyncio.gather(*(client() for _ in range(clients)))
