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


class Connection:
    """A connection that is kept alive, and made again when the server has closed it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._socket: socket.socket | None = None

    async def post(self, path: str, body: bytes, cookie: str) -> tuple[bytes, str]:
        loop = asyncio.get_running_loop()
        for _ in range(3):
            if self._socket is None:
                self._socket = socket.socket()
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._socket.setblocking(False)
                await loop.sock_connect(self._socket, ("127.0.0.1", self._port))
            answer = await self._exchange(loop, self._socket, request(path, body, cookie))
            if answer is not None:
                return answer
            self._socket.close()
            self._socket = None
        raise ConnectionError(f"{path}: the server closes every connection")

    async def _exchange(
        self, loop: asyncio.AbstractEventLoop, wire: socket.socket, data: bytes
    ) -> tuple[bytes, str] | None:
        try:
            await loop.sock_sendall(wire, data)
            received = b""
            while b"\r\n\r\n" not in received:
                part = await loop.sock_recv(wire, 65536)
                if not part:
                    return None
                received += part
        except ConnectionError:
            return None
        head, _, body = received.partition(b"\r\n\r\n")
        status, length, cookie = head_of(head)
        while len(body) < length:
            body += await loop.sock_recv(wire, 65536)
        if status != 200:
            raise RuntimeError(f"answered {status}: {body[:500]!r}")
        return body, cookie

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()


async def play(port: int, sessions: int, concurrency: int, *, steps: int = 3) -> Load:
    """Play whole sessions, each in order on one connection.

    Args:
        steps: 1: only seed them, 2: seed and activate, 3: close them too.
    """
    load, left = Load(), iter(range(sessions))

    async def client() -> None:
        connection = Connection(port)
        for _ in left:
            name, cookie = f"s{uuid.uuid4().hex}", ""
            began = time.perf_counter()
            for path, body in bodies(name)[:steps]:
                _, cookie = await connection.post(path, body, cookie)
            load.latencies_s.append(time.perf_counter() - began)
        connection.close()

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(concurrency)))
    load.wall_s = time.perf_counter() - began
    return load
