"""The Resources Server: owns each episode's sandbox from its creation to its end, and grades the task.

A session is seeded once, verified at most once and closed for certain::

    POST /seed_session    create the sandbox, prepare the repository
    POST /verify          run the task's tests in that sandbox; the first result is the only one
    POST /close_session   stop the sandbox; repeatable until it succeeds, and after

A close fences a set-up that is still in progress: the sandbox that comes out of it is stopped, not used.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Annotated, Any

import anyio
import attrs
from attrs import field, frozen
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from inspan_core.codec import decode, encode, normalised_digest
from inspan_core.constraints import Text
from inspan_core.errors import InspanError, WireError
from inspan_core.sandbox import SandboxProvider
from inspan_core.wire import EpisodeId, TaskId
from inspan_server.environment.bodies import (
    Refused,
    answer,
    on_http_error,
    on_refused,
    on_wire_error,
    read_json,
)
from inspan_server.environment.markers import COOKIE, SESSION_ID, Markers
from inspan_server.environment.resources_session import BeforeStop, ResourcesSession, Sessions, Workplace
from inspan_server.environment.task import Task

ResourcesId = Annotated[str, Text(pattern=f"^{SESSION_ID.pattern}$")]


@frozen(kw_only=True)
class ResourcesSeed:
    """``POST /seed_session``."""

    resources_session_id: ResourcesId
    episode_id: EpisodeId
    task_id: TaskId
    task_data: Mapping[str, Any] = field(factory=dict)


@frozen(kw_only=True)
class ResourcesClose:
    """``POST /close_session``."""

    resources_session_id: ResourcesId
    episode_id: EpisodeId


def create_resources_app(
    provider: SandboxProvider,
    tasks: Mapping[str, Task],
    *,
    workplace: Workplace,
    observe: Callable[[str, str], None] | None = None,
    before_stop: BeforeStop | None = None,
    close_retry_window_s: float = 300.0,
) -> Starlette:
    """Build the Resources Server's application.

    The provider stays the caller's: its ``aclose`` is not called. Sandboxes that are left when the
    application shuts down are stopped.

    Args:
        provider: Makes the sandboxes.
        tasks: By their ``task_id.task_id``.
        workplace: What every sandbox gets, and how an Agent Server reaches it.
        observe: Called with a session id and a step (``create_sandbox``, ``prepare_task``, ``run_tests``,
            ``stop_sandbox``) when the step begins.
        before_stop: Given each prepared sandbox and its workdir for a last look before it is stopped.
        close_retry_window_s: How long a closed session's answer is kept, in seconds.
    """
    sessions = Sessions(
        provider=provider,
        workplace=workplace,
        observe=observe or (lambda session_id, step: None),
        close_retry_window_s=close_retry_window_s,
        before_stop=before_stop,
    )
    server = _Resources(sessions=sessions, tasks=tasks, workplace=workplace)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):
                await sessions.stop_all()

    return Starlette(
        routes=[
            Route("/seed_session", server.seed, methods=["POST"]),
            Route("/verify", server.verify, methods=["POST"]),
            Route("/close_session", server.close, methods=["POST"]),
        ],
        exception_handlers={Refused: on_refused, WireError: on_wire_error, HTTPException: on_http_error},
        lifespan=lifespan,
    )


@frozen(kw_only=True)
class _Resources:
    sessions: Sessions
    tasks: Mapping[str, Task]
    workplace: Workplace
    markers: Markers = field(factory=Markers)

    async def seed(self, request: Request) -> Response:
        body = decode(ResourcesSeed, await read_json(request))
        task = self.tasks.get(body.task_id.task_id)
        if task is None or task.task_id != body.task_id:
            known = ", ".join(sorted(f"{t.task_id.taskset}/{t.task_id.task_id}" for t in self.tasks.values()))
            raise Refused(422, f"no task {body.task_id.taskset}/{body.task_id.task_id}; known: {known}")
        session = self.sessions.opened(
            body.resources_session_id, body.episode_id, task, normalised_digest(body)
        )
        try:
            access = await self.sessions.set_up(session)
        except InspanError as error:
            raise Refused(503, f"the sandbox could not be set up: {error}") from error
        seeded = {
            "resources_session_id": body.resources_session_id,
            "sandbox_access": encode(access),
            "resources_tools": [],
        }
        return answer(seeded, headers=self.markers.header(body.resources_session_id))

    async def verify(self, request: Request) -> Response:
        body = await read_json(request)
        if not isinstance(body, dict) or not isinstance(body.get("response"), dict):
            raise Refused(422, "expected an object with the agent's response")
        session = self._marked(request)
        try:
            verification = await self.sessions.verify(session, normalised_digest(body))
        except InspanError as error:
            raise Refused(503, f"the task could not be verified: {error}") from error
        told = attrs.asdict(verification)
        graded = {"reward": told.pop("reward"), "verification": told}
        return answer(graded, headers=self.markers.header(session.session_id))

    async def close(self, request: Request) -> Response:
        body = decode(ResourcesClose, await read_json(request))
        try:
            await self.sessions.close(body.resources_session_id, body.episode_id)
        except InspanError as error:
            raise Refused(503, f"the sandbox could not be stopped: {error}") from error
        closed = {"resources_session_id": body.resources_session_id}
        return answer(closed, headers=self.markers.header(body.resources_session_id))

    def _marked(self, request: Request) -> ResourcesSession:
        session_id = self.markers.session_id(request.cookies.get(COOKIE))
        session = None if session_id is None else self.sessions.find(session_id)
        if session is None:
            raise Refused(409, f"the cookie {COOKIE} names no open session")
        return session
