"""The compatibility endpoint ``POST /run``: one episode of a Resources Server, run on the host path.

Seed the resources, run the harness on this host, verify, close the resources; the close is registered before
the seed is sent. The answer is what verification answered. A run that failed, of a harness that was proven
stopped, is verified too and its answer masked; whatever was not proven stopped is not verified at all.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Mapping
from typing import Any

import anyio
import httpx
from attrs import define, field, frozen

from inspan_core.codec import decode, encode, normalised_digest
from inspan_core.errors import WireError
from inspan_core.json_text import problem
from inspan_core.wire import DirectHttpAccess, EpisodeId, ResponsesRequest, TaskId, ToolAccess
from inspan_runtime.contents import error_answer
from inspan_runtime.host_calls import HostCall, HostRequest
from inspan_runtime.service import NO_HOST, AgentService, Answer
from inspan_server.agent.config import ResourcesServerConfig
from inspan_server.environment.calls import Answered, Retries, Stage, StageFailure, call, new_client
from inspan_server.environment.cookies import cookies_set_by

CLOSE_TRIES = 3
CLOSE_RETRY_DELAY_S = 0.5
CLOSE_LIMIT_S = 60.0
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
    """

    params: ResponsesRequest
    episode_id: EpisodeId
    task_id: TaskId
    task_data: Mapping[str, Any]


def decode_run(body: Any) -> CompatBody:
    """The body of ``POST /run``.

    Raises:
        WireError: It does not fit; fields that are the task's own are not looked at.
    """
    if not isinstance(body, dict):
        raise WireError([problem("model_attributes_type", (), "must be an object", body)])
    rest = dict(body)
    params = _decoded(ResponsesRequest, rest.pop("responses_create_params", None), "responses_create_params")
    run_id = f"run-{uuid.uuid4().hex}"
    episode_id, task_id = EpisodeId(rollout_id=run_id), TaskId(taskset="run", task_id=run_id)
    if isinstance(rest.get("episode_id"), dict):
        episode_id = _decoded(EpisodeId, rest.pop("episode_id"), "episode_id")
    if isinstance(rest.get("task_id"), dict):
        task_id = _decoded(TaskId, rest.pop("task_id"), "task_id")
    return CompatBody(params=params, episode_id=episode_id, task_id=task_id, task_data=rest)


def _decoded(kind: Any, value: Any, name: str) -> Any:
    try:
        return decode(kind, value)
    except WireError as error:
        faults = [{**each, "loc": ["body", name, *each["loc"][1:]]} for each in error.problems]
        raise WireError(faults) from error


@define
class CompatRuns:
    """Runs such episodes over one service.

    Attributes:
        resources: Where the Resources Server is; None: every run is refused.
    """

    service: AgentService
    resources: ResourcesServerConfig | None

    async def run(self, body: CompatBody) -> Answer:
        """Run one episode. Being cancelled only forgets the one who waits."""
        if self.resources is None:
            return error_answer(422, NO_BINDING)
        if self.service.host is None:
            return error_answer(422, NO_HOST)
        answers: list[Answer] = []
        over = anyio.Event()
        episode = _Episode(self.service, self.resources, body)

        async def task() -> None:
            try:
                async with new_client() as client:
                    answers.append(await episode.answered(client))
            finally:
                over.set()

        self.service.host.spawn(task)
        await over.wait()
        return answers[0] if answers else error_answer(503, "the server ended before the episode did")


@define
class _Episode:
    service: AgentService
    resources: ResourcesServerConfig
    body: CompatBody
    session_id: str = field(factory=lambda: f"resources-session-{uuid.uuid4().hex}", init=False)
    cookies: dict[str, str] = field(factory=dict, init=False)

    async def answered(self, client: httpx.AsyncClient) -> Answer:
        try:
            return await self._graded(client)
        except StageFailure as error:
            return error_answer(422 if error.terminal else 503, f"{error.stage}: {error}")
        finally:
            # Also when the server ends, which waits no longer for it than this.
            with anyio.move_on_after(CLOSE_LIMIT_S, shield=True) as bound:
                await self._close(client)
            if bound.cancelled_caught:
                log.warning("session %s of the Resources Server: not closed in time", self.session_id)

    async def _graded(self, client: httpx.AsyncClient) -> Answer:
        await self._seed(client)
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
            self.cookies = dict(begun.resources_cookies)
        if answer.status == 200:
            return Answer(status=200, body=await self._verify(client, answer.body))
        if begun.failed_response is None:
            return answer
        verdict = await self._verify(client, _failed_response(begun, answer))
        return Answer(status=200, body={**verdict, **MASK})

    async def _seed(self, client: httpx.AsyncClient) -> None:
        body = {
            **self._identity(),
            "task_id": encode(self.body.task_id),
            "task_data": dict(self.body.task_data),
        }
        answered = await self._call(client, "seed", "seed_session", body)
        self.cookies = cookies_set_by(answered.response)
        if answered.body.get("sandbox_access") is not None:
            raise StageFailure(
                "seed",
                "the Resources Server supplies a sandbox, and /run uses the host: submit the episode to an "
                "Environment Server",
                terminal=True,
            )

    def _grants(self) -> tuple[ToolAccess, ...]:
        """The request's functions are the Resources Server's, with the cookies of its seed."""
        tools = self.body.params.tools
        if not tools or self.service.harness.spec.tool_sources.isdisjoint({"direct_http"}):
            return ()
        grant = DirectHttpAccess(
            name=GRANT_NAME, base_url=self.resources.base_url, cookies=dict(self.cookies), required=True
        )
        return (grant,)

    async def _verify(self, client: httpx.AsyncClient, response: Mapping[str, Any]) -> Mapping[str, Any]:
        body = {
            **self.body.task_data,
            "responses_create_params": dict(self.body.params.raw),
            "response": dict(response),
        }
        verdict = (await self._call(client, "verification", "verify", body)).body
        reward = verdict.get("reward")
        if isinstance(reward, bool) or not isinstance(reward, int | float):
            raise StageFailure(
                "verification", f"verify: reward: expected a number, got {reward!r}", terminal=False
            )
        return verdict

    async def _close(self, client: httpx.AsyncClient) -> None:
        """Close the resources, also after a seed that failed: what became of it is not known."""
        for attempt in range(CLOSE_TRIES):
            try:
                await self._call(client, "cleanup", "close_session", self._identity())
                return
            except StageFailure as error:
                # The grade was earned before, and stands.
                log.warning("session %s of the Resources Server: %s", self.session_id, error)
                if error.terminal or attempt == CLOSE_TRIES - 1:
                    return
            await anyio.sleep(CLOSE_RETRY_DELAY_S)

    def _identity(self) -> dict[str, Any]:
        return {"resources_session_id": self.session_id, "episode_id": encode(self.body.episode_id)}

    async def _call(
        self, client: httpx.AsyncClient, stage: Stage, name: str, body: Mapping[str, Any]
    ) -> Answered:
        url = f"{self.resources.base_url.rstrip('/')}/{name}"
        bound_s = self.resources.timeout_s
        try:
            with anyio.fail_after(bound_s):
                return await call(
                    client, stage, name, url, body, cookies=self.cookies, retries=Retries(window_s=bound_s)
                )
        except TimeoutError as error:
            raise StageFailure(stage, f"{name} took longer than {bound_s:g} s", terminal=False) from error


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
