"""The Environment Server: ``POST /run`` drives one episode and answers how it ended."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
from attrs import define, field
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from inspan_core.codec import decode, encode
from inspan_core.errors import WireError
from inspan_core.wire import RunRequest, RunResponse
from inspan_server.environment.admission import Admission, QueueTimeout
from inspan_server.environment.bodies import (
    Refused,
    answer,
    on_http_error,
    on_refused,
    on_wire_error,
    read_json,
)
from inspan_server.environment.calls import new_client
from inspan_server.environment.episode import EpisodeLimits, Observe, Servers, run_episode


def create_environment_app(
    servers: Servers,
    *,
    limits: EpisodeLimits | None = None,
    admission: Admission | None = None,
    observe: Observe | None = None,
) -> Starlette:
    """Build the Environment Server's application.

    Episodes belong to the application, not to the requests that asked for them: a client that goes away
    changes nothing, and the application's shutdown cancels what runs and waits for its clean-up.
    """
    environment = _Environment(servers, limits, admission or Admission(), observe)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with new_client() as client, anyio.create_task_group() as tasks:
            environment.client, environment.tasks = client, tasks
            try:
                yield
            finally:
                tasks.cancel_scope.cancel()

    return Starlette(
        routes=[Route("/run", environment.run, methods=["POST"])],
        exception_handlers={Refused: on_refused, WireError: on_wire_error, HTTPException: on_http_error},
        lifespan=lifespan,
    )


@define
class _Environment:
    servers: Servers
    limits: EpisodeLimits | None
    admission: Admission
    observe: Observe | None
    client: httpx.AsyncClient = field(init=False)
    tasks: Any = field(init=False)

    async def run(self, request: Request) -> Response:
        asked = decode(RunRequest, await read_json(request))
        ended = anyio.Event()
        outcome: list[RunResponse | Exception] = []

        async def episode() -> None:
            try:
                async with self.admission.place():
                    outcome.append(
                        await run_episode(
                            self.client, asked, self.servers, limits=self.limits, observe=self.observe
                        )
                    )
            except Exception as error:
                # One episode's fault must not end the others, which share the task group.
                outcome.append(error)
            finally:
                ended.set()

        self.tasks.start_soon(episode)
        await ended.wait()
        if not outcome:
            raise Refused(503, "the environment is shutting down; the episode was closed")
        if isinstance(outcome[0], QueueTimeout):
            raise Refused(503, str(outcome[0]))
        if isinstance(outcome[0], Exception):
            raise outcome[0]
        return answer(encode(outcome[0]))
