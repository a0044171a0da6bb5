"""The least that can answer the three requests of a session: FastAPI, a dictionary, and no rules.

    python benchmarks/baseline_fastapi.py            measure it
    python benchmarks/baseline_fastapi.py --serve    serve it, for benchmarks/server.py

It keeps nothing, checks nothing, runs nothing, and forgets a session when it is closed.
"""

from __future__ import annotations

import socket
import sys
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException, Request, Response
from pydantic import BaseModel

RESPONSE = {
    "id": "resp_0", "created_at": 0, "model": "policy", "object": "response", "output": [],
    "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "status": "completed",
}  # fmt: skip


class Episode(BaseModel):
    """Which attempt at which rollout."""

    rollout_id: str
    attempt: int = 0


class Seed(BaseModel):
    """Opens a session."""

    agent_session_id: str
    episode_id: Episode
    task_id: dict[str, str]
    tool_accesses: list[Any] = []
    sandbox_access: dict[str, Any] | None = None


class Close(BaseModel):
    """Closes one."""

    agent_session_id: str
    episode_id: Episode


class Activation(BaseModel):
    """Asks for a run."""

    input: Any


def create() -> FastAPI:
    """The application."""
    app, sessions = FastAPI(), dict[str, Seed]()

    @app.post("/v1/agent_sessions")
    async def seed(body: Seed, response: Response) -> dict[str, str]:
        sessions[body.agent_session_id] = body
        response.set_cookie("session", body.agent_session_id)
        return {"agent_session_id": body.agent_session_id}

    @app.post("/ng-rollout/{key}/v1/responses")
    async def activate(key: str, body: Activation, request: Request, response: Response) -> dict[str, Any]:
        name = request.cookies.get("session", "")
        if name not in sessions:
            raise HTTPException(409)
        response.set_cookie("session", name)
        return RESPONSE

    @app.post("/v1/agent_sessions/close")
    async def close(body: Close, response: Response) -> dict[str, Any]:
        sessions.pop(body.agent_session_id, None)
        response.set_cookie("session", body.agent_session_id)
        return {"agent_session_id": body.agent_session_id, "agent_observations": None}

    return app


def serve() -> None:
    """Serve on a free port of loopback, and say which."""
    # asyncio sets TCP_NODELAY only on sockets that name their protocol.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen(512)
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    uvicorn.Server(uvicorn.Config(create(), log_level="warning", access_log=False)).run([listener])


def main() -> None:
    """Measure it with one client and with fifty."""
    from server import measure, server

    with server("baseline_fastapi.py", "--serve") as at:
        for clients in (1, 50):
            load, cpu_ms = measure(at, 1000, clients)
            print(
                f"{clients:3} clients: {load.per_second:.0f} sessions/s, "
                f"p50 {load.quantile_ms(0.5):.2f} ms, CPU {cpu_ms:.2f} ms"
            )


if __name__ == "__main__":
    serve() if "--serve" in sys.argv else main()
