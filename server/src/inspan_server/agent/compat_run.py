"""The compatibility endpoint ``POST /run``: one episode of a Resources Server, run on the host path.

Seed the resources, run the harness on this host, verify, close the resources; the close is registered before
the seed is sent. The answer is what verification answered. A run that failed, of a harness that was proven
stopped, is verified too and its answer masked; whatever was not proven stopped is not verified at all.
"""

from __future__ import annotations

import hashlib
import logging
import time
import uuid
from collections.abc import Mapping
from functools import partial
from typing import Any

import anyio
from attrs import define, field, frozen

from inspan_core.codec import decode, normalised_digest
from inspan_core.errors import WireError
from inspan_core.json_text import canonical_text, problem
from inspan_core.wire import DirectHttpAccess, EpisodeId, ResponsesRequest, TaskId, ToolAccess
from inspan_runtime.contents import error_answer
from inspan_runtime.host_calls import REPLAY_LIMIT, HostCall, HostRequest
from inspan_runtime.service import NO_HOST, AgentService, Answer
from inspan_server.agent.config import ResourcesServerConfig
from inspan_server.agent.owed_closes import OwedClose, OwedCloses, OweError
from inspan_server.agent.resources_session import CLOSE_LIMIT_S, ResourcesSession
from inspan_server.environment.calls import StageFailure, new_client

GRANT_NAME = "resources"
MASK: Mapping[str, Any] = {"mask_sample": True, "failure_kind": "agent_request_failed"}
NO_BINDING = (
    "this server has no resources_server: set it in the configuration to use /run, or submit the episode to "
    "an Environment Server"
)
log = logging.getLogger(__name__)


@frozen(kw_only=True)
class CompatBody:
    """``POST /run``.

    Attributes:
        params: The Responses request.
        episode_id: The body's, or one of its own.
        task_id: The body's where it has the contract's shape.
        task_data: All other fields.
        key: The same for the same body, where it names its episode; else None.
    """

    params: ResponsesRequest
    episode_id: EpisodeId
    task_id: TaskId
    task_data: Mapping[str, Any]
    key: str | None = None


def decode_run(body: Any) -> CompatBody:
    """The body of ``POST /run``.

    Raises:
        WireError: It does not fit; fields that are the task's own are not looked at.
    """
    if not isinstance(body, dict):
        raise WireError([problem("model_attributes_type", (), "must be an object", body)])
    rest, key = dict(body), None
    params = _decoded(ResponsesRequest, rest.pop("responses_create_params", None), "responses_create_params")
    run_id = f"run-{uuid.uuid4().hex}"
    episode_id, task_id = EpisodeId(rollout_id=run_id), TaskId(taskset="run", task_id=run_id)
    if isinstance(rest.get("episode_id"), dict):
        episode_id = _decoded(EpisodeId, rest.pop("episode_id"), "episode_id")
        key = hashlib.sha256(canonical_text(body).encode("utf-8", "surrogatepass")).hexdigest()
    if isinstance(rest.get("task_id"), dict):
        task_id = _decoded(TaskId, rest.pop("task_id"), "task_id")
    return CompatBody(params=params, episode_id=episode_id, task_id=task_id, task_data=rest, key=key)


def _decoded(kind: Any, value: Any, name: str) -> Any:
    try:
        return decode(kind, value)
    except WireError as error:
        faults = [{**each, "loc": ["body", name, *each["loc"][1:]]} for each in error.problems]
        raise WireError(faults) from error


@define(eq=False)
class _Run:
    """One episode under way, or over."""

    over: anyio.Event = field(factory=anyio.Event)
    answer: Answer | None = None
    answered_at: float = 0.0


@define
class CompatRuns:
    """Runs such episodes over one service.

    A body that names its episode is known by it: the same request again joins the run, or gets its answer
    again for the retry window. Nothing of it is journalled: after the death of the server it is run anew, in
    a new session of the Resources Server, and the old one is closed.

    Attributes:
        service: With the host path.
        resources: Where the Resources Server is; None: every run is refused.
        owed: The sessions that are open there.
    """

    service: AgentService
    resources: ResourcesServerConfig | None
    owed: OwedCloses = field(factory=lambda: OwedCloses(None))
    _known: dict[str, _Run] = field(factory=dict, init=False)

    def close_left(self) -> None:
        """Begin to close what a killed server left open at its Resources Server."""
        left = self.owed.left()
        if left and self.service.host is not None:
            self.service.host.spawn(partial(self._close_left, left))

    async def _close_left(self, left: list[OwedClose]) -> None:
        bound_s = CLOSE_LIMIT_S if self.resources is None else self.resources.timeout_s
        async with new_client() as client, anyio.create_task_group() as tasks:
            for each in left:
                log.warning("closing session %s, which a killed server had left open", each.session_id)
                session = ResourcesSession(
                    client, each.base_url, bound_s, each.episode_id, self.owed, each.session_id, each.cookies
                )
                tasks.start_soon(session.close)

    async def run(self, body: CompatBody) -> Answer:
        """Run one episode. Being cancelled only forgets the one who waits."""
        if self.resources is None:
            return error_answer(422, NO_BINDING)
        if self.service.host is None:
            return error_answer(422, NO_HOST)
        self._forget_old()
        run = None if body.key is None else self._known.get(body.key)
        if run is None:
            run = _Run()
            self.service.host.spawn(partial(self._perform, run, body, self.resources))
            if body.key is not None:
                self._known[body.key] = run
        await run.over.wait()
        return run.answer or error_answer(503, "the server ended before the episode did")

    async def _perform(self, run: _Run, body: CompatBody, resources: ResourcesServerConfig) -> None:
        try:
            async with new_client() as client:
                session = ResourcesSession(
                    client, resources.base_url, resources.timeout_s, body.episode_id, self.owed
                )
                run.answer = await _Episode(self.service, session, body).answered()
        finally:
            run.answered_at = anyio.current_time()
            run.over.set()
            if run.answer is None or run.answer.status != 200:
                self._known = {key: each for key, each in self._known.items() if each is not run}

    def _forget_old(self) -> None:
        """Keep answers for the retry window, and no more of them than the limit."""
        oldest = anyio.current_time() - self.service.settings.session.retry_window_s
        over = [key for key, run in self._known.items() if run.answer is not None]
        surplus = len(over) - REPLAY_LIMIT
        for number, key in enumerate(over):
            if number < surplus or self._known[key].answered_at < oldest:
                del self._known[key]


@define
class _Episode:
    service: AgentService
    session: ResourcesSession
    body: CompatBody

    async def answered(self) -> Answer:
        try:
            self.session.owe()
            try:
                return await self._graded()
            finally:
                await self.session.close()
        except StageFailure as error:
            return error_answer(422 if error.terminal else 503, f"{error.stage}: {error}")
        except OweError as error:
            return error_answer(503, f"seed: {error}")

    async def _graded(self) -> Answer:
        await self.session.seed(self.body.task_id, self.body.task_data)
        begun = self.service.start_host_call(
            HostRequest(
                capture_key=self.body.episode_id.capture_key,
                token_capture=False,
                body=self.body.params.raw,
                digest=normalised_digest(self.body.params),
                tool_accesses=self._grants(),
            )
        )
        if isinstance(begun, Answer):
            return begun
        await begun.over.wait()
        answer = begun.answer
        if answer is None or not begun.is_released:
            return error_answer(503, "the run is not proven over, so it is not verified")
        if begun.resources_cookies is not None:
            self.session.cookies = dict(begun.resources_cookies)
        if answer.status == 200:
            return Answer(status=200, body=await self._verify(answer.body))
        if begun.failed_response is None:
            return answer
        verdict = await self._verify(_failed_response(begun, answer))
        return Answer(status=200, body={**verdict, **MASK})

    def _grants(self) -> tuple[ToolAccess, ...]:
        """The request's functions are the Resources Server's, with the cookies of its seed."""
        tools = self.body.params.tools
        if not tools or self.service.harness.spec.tool_sources.isdisjoint({"direct_http"}):
            return ()
        grant = DirectHttpAccess(
            name=GRANT_NAME,
            base_url=self.session.base_url,
            cookies=dict(self.session.cookies),
            required=True,
        )
        return (grant,)

    async def _verify(self, response: Mapping[str, Any]) -> Mapping[str, Any]:
        return await self.session.verify(
            {
                **self.body.task_data,
                "responses_create_params": dict(self.body.params.raw),
                "response": dict(response),
            }
        )


def _failed_response(failed: HostCall, answer: Answer) -> dict[str, Any]:
    """What the parser made of the run; where it made nothing, a response that says that it failed."""
    detail = answer.body.get("detail")
    message = detail.get("message") if isinstance(detail, Mapping) else detail
    return {
        "id": f"resp_{failed.call_id.replace('-', '_')}",
        "object": "response",
        "created_at": time.time(),
        "model": "",
        "status": "failed",
        "output": [],
        "usage": None,
        "metadata": {},
        "incomplete_details": None,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "error": {"code": "server_error", "message": str(message)},
        **(failed.failed_response or {}),
    }
