"""One episode over HTTP, in the one order that makes its grade worth something.

Seed the resources, seed the agent, activate, close the agent, verify, close the resources. Each close is
registered before its seed is sent, so that an interrupted seed is closed too. Verification happens only
after the activation *and* the agent's close were answered 200: nothing is graded that was not proven
stopped.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import anyio
import httpx
from attrs import define, field, frozen

from inspan_core.codec import encode
from inspan_core.wire import EpisodeId, RunFailure, RunRequest, RunResponse
from inspan_server.environment.calls import Answered, Retries, Stage, StageFailure, call
from inspan_server.environment.cookies import cookies_set_by

StepName = Literal[
    "seed_resources", "seed_agent", "activate", "close_agent", "verify", "close_resources"
]  # fmt: skip


@frozen(kw_only=True)
class StepBegan:
    """A call of the episode is sent; `at` is in monotonic seconds."""

    step: StepName
    episode_id: EpisodeId
    at: float


@frozen(kw_only=True)
class StepEnded:
    """A call of the episode was answered well (`failure` None), or not."""

    step: StepName
    episode_id: EpisodeId
    at: float
    duration_s: float
    failure: str | None = None


CLEANUP_TRIES = 3
Observe = Callable[[StepBegan | StepEnded], None]


@frozen(kw_only=True)
class EpisodeLimits:
    """Bounds of an episode, in seconds.

    Attributes:
        episode_timeout_s: Everything up to verification.
        cleanup_timeout_s: Each close of the final clean-up.
        retries: Of lost connections.
    """

    episode_timeout_s: float = 4 * 3600.0
    cleanup_timeout_s: float = 300.0
    retries: Retries = field(factory=Retries)


@frozen(kw_only=True)
class Servers:
    """Where the episode's servers are, without a final slash.

    Attributes:
        token_capture: Whether activations carry the ``training-token-capture`` segment.
    """

    resources_url: str
    agent_url: str
    token_capture: bool = False


async def run_episode(
    client: httpx.AsyncClient,
    request: RunRequest,
    servers: Servers,
    *,
    limits: EpisodeLimits | None = None,
    observe: Observe | None = None,
) -> RunResponse:
    """Run one episode; how it ended is data.

    Cancelling it does not skip the clean-up, which is bounded by `EpisodeLimits.cleanup_timeout_s`.

    Returns:
        ``result`` holds what verification answered (``reward``), ``response`` and ``agent_observations``,
        and ``cleanup_failures`` when the final clean-up had some; or ``failure`` says what went wrong.
    """
    limits = limits or EpisodeLimits()
    episode = _Episode(client, request, servers, limits, observe or (lambda event: None))
    result: dict[str, Any] | None = None
    failure: RunFailure | None = None
    try:
        with anyio.fail_after(limits.episode_timeout_s):
            result = await episode.graded()
    except StageFailure as error:
        failure = episode.failure(error.stage, str(error), terminal=error.terminal)
    except TimeoutError:
        reason = f"the episode took longer than {limits.episode_timeout_s:g} s"
        failure = episode.failure(episode.stage, reason, terminal=False)
    finally:
        with anyio.CancelScope(shield=True):
            problems = await episode.clean_up()
    if result is not None and problems:
        # The grade stands: it was earned before the clean-up began.
        result["cleanup_failures"] = problems
    return RunResponse(
        episode_id=request.episode_id, task_id=request.task.task_id, result=result, failure=failure
    )


@define
class _Episode:
    client: httpx.AsyncClient
    request: RunRequest
    servers: Servers
    limits: EpisodeLimits
    observe: Observe
    stage: Stage = field(default="seed", init=False)
    response: Mapping[str, Any] | None = field(default=None, init=False)
    agent_session_id: str = field(factory=lambda: f"agent-session-{secrets.token_hex(16)}", init=False)
    resources_session_id: str = field(
        factory=lambda: f"resources-session-{secrets.token_hex(16)}", init=False
    )
    _agent_cookies: dict[str, str] = field(factory=dict, init=False)
    _resources_cookies: dict[str, str] = field(factory=dict, init=False)
    _closes: list[Callable[[], Awaitable[Any]]] = field(factory=list, init=False)

    async def graded(self) -> dict[str, Any]:
        """The episode up to its grade."""
        self._closes.append(self._close_resources)
        sandbox_access = await self._seed_resources()
        self._closes.append(self._close_agent)
        await self._seed_agent(sandbox_access)
        self.stage = "agent"
        response = await self._activate()
        self.stage = "cleanup"
        closed = await self._close_agent()
        self._closes.remove(self._close_agent)
        if closed.get("resources_cookies"):
            self._resources_cookies = dict(closed["resources_cookies"])
        self.stage = "verification"
        verdict = await self._verify(response)
        return {**verdict, "response": response, "agent_observations": closed.get("agent_observations")}

    async def clean_up(self) -> list[str]:
        """Close what is still open, the agent before the resources; every close is tried.

        Returns:
            What could not be closed, one sentence each.
        """
        problems: list[str] = []
        while self._closes:
            close = self._closes.pop()
            try:
                with anyio.fail_after(self.limits.cleanup_timeout_s):
                    await self._insist(close)
            except StageFailure as error:
                problems.append(str(error))
            except TimeoutError:
                problems.append(f"a close took longer than {self.limits.cleanup_timeout_s:g} s")
        return problems

    async def _insist(self, close: Callable[[], Awaitable[Any]]) -> None:
        for _ in range(CLEANUP_TRIES - 1):
            try:
                await close()
                return
            except StageFailure as error:
                if error.terminal:
                    raise
            await anyio.sleep(self.limits.retries.delay_s)
        await close()

    def failure(self, stage: Stage, reason: str, *, terminal: bool) -> RunFailure:
        return RunFailure(
            failure_reason=reason, terminal=terminal, stage=stage, partial_response=self.response
        )

    async def _seed_resources(self) -> Any:
        body = {
            "resources_session_id": self.resources_session_id,
            "episode_id": encode(self.request.episode_id),
            "task_id": encode(self.request.task.task_id),
            "task_data": dict(self.request.task.task_input.task_data),
        }
        with self._step("seed_resources"):
            url = f"{self.servers.resources_url}/seed_session"
            answered = await self._call("seed", "resources seed", url, body, {})
        self._resources_cookies = cookies_set_by(answered.response)
        return answered.body.get("sandbox_access")

    async def _seed_agent(self, sandbox_access: Any) -> None:
        body = {
            "agent_session_id": self.agent_session_id,
            "episode_id": encode(self.request.episode_id),
            "task_id": encode(self.request.task.task_id),
            "tool_accesses": [],
            "sandbox_access": sandbox_access,
        }
        with self._step("seed_agent"):
            url = f"{self.servers.agent_url}/v1/agent_sessions"
            answered = await self._call("seed", "agent seed", url, body, {})
        self._agent_cookies = cookies_set_by(answered.response)

    async def _activate(self) -> Mapping[str, Any]:
        segment = "/training-token-capture" if self.servers.token_capture else ""
        key = self.request.episode_id.capture_key
        url = f"{self.servers.agent_url}/ng-rollout/{key}{segment}/v1/responses"
        params = dict(self.request.task.task_input.responses_create_params)
        with self._step("activate"):
            answered = await self._call("agent", "agent activation", url, params, self._agent_cookies)
        # Replaced, not updated, as the field's clients do.
        self._agent_cookies = cookies_set_by(answered.response)
        self.response = answered.body
        return answered.body

    async def _close_agent(self) -> Mapping[str, Any]:
        body = {
            "agent_session_id": self.agent_session_id,
            "episode_id": encode(self.request.episode_id),
        }
        with self._step("close_agent"):
            url = f"{self.servers.agent_url}/v1/agent_sessions/close"
            answered = await self._call("cleanup", "agent close", url, body, self._agent_cookies)
        return answered.body

    async def _verify(self, response: Mapping[str, Any]) -> Mapping[str, Any]:
        given = self.request.task.task_input
        params = dict(given.responses_create_params)
        body = {**given.task_data, "responses_create_params": params, "response": response}
        with self._step("verify"):
            url = f"{self.servers.resources_url}/verify"
            verdict = (await self._call("verification", "verify", url, body, self._resources_cookies)).body
            reward = verdict.get("reward")
            if isinstance(reward, bool) or not isinstance(reward, int | float):
                raise StageFailure(
                    "verification", f"verify: reward: expected a number, got {reward!r}", terminal=True
                )
        return verdict

    async def _close_resources(self) -> Mapping[str, Any]:
        body = {
            "resources_session_id": self.resources_session_id,
            "episode_id": encode(self.request.episode_id),
        }
        with self._step("close_resources"):
            url = f"{self.servers.resources_url}/close_session"
            answered = await self._call("cleanup", "resources close", url, body, self._resources_cookies)
        return answered.body

    async def _call(
        self, stage: Stage, what: str, url: str, body: Any, cookies: Mapping[str, str]
    ) -> Answered:
        return await call(self.client, stage, what, url, body, cookies=cookies, retries=self.limits.retries)

    @contextmanager
    def _step(self, step: StepName) -> Iterator[None]:
        episode_id = self.request.episode_id
        began = anyio.current_time()
        self.observe(StepBegan(step=step, episode_id=episode_id, at=began))
        failure: str | None = "cut off"
        try:
            yield
            failure = None
        except StageFailure as error:
            failure = str(error)
            raise
        finally:
            now = anyio.current_time()
            self.observe(
                StepEnded(step=step, episode_id=episode_id, at=now, duration_s=now - began, failure=failure)
            )
