"""One session at a Resources Server: seeded, verified, and closed whatever became of the rest."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from typing import Any

import anyio
import httpx
from attrs import define, field

from inspan_core.codec import encode
from inspan_core.wire import EpisodeId, TaskId
from inspan_server.agent.owed_closes import OwedClose, OwedCloses
from inspan_server.environment.calls import Answered, Retries, Stage, StageFailure, call
from inspan_server.environment.cookies import cookies_set_by

CLOSE_TRIES = 3
CLOSE_RETRY_DELAY_S = 0.5
CLOSE_LIMIT_S = 60.0
log = logging.getLogger(__name__)


@define
class ResourcesSession:
    """What one episode asks of its Resources Server.

    Attributes:
        client: Keeps no cookies of its own.
        base_url: Of the Resources Server.
        timeout_s: Most seconds of each call.
        episode_id: In every body.
        owed: Where it is kept that the session is open.
        session_id: Random.
        cookies: The session's jar.
    """

    client: httpx.AsyncClient
    base_url: str
    timeout_s: float
    episode_id: EpisodeId
    owed: OwedCloses
    session_id: str = field(factory=lambda: f"resources-session-{uuid.uuid4().hex}")
    cookies: dict[str, str] = field(factory=dict, repr=False)

    def owe(self) -> None:
        """Keep that a close is owed, from before the seed on.

        Raises:
            OweError: It cannot be kept.
        """
        self.owed.keep(
            OwedClose(
                session_id=self.session_id,
                episode_id=self.episode_id,
                base_url=self.base_url,
                cookies=self.cookies,
            )
        )

    async def seed(self, task_id: TaskId, task_data: Mapping[str, Any]) -> None:
        """Open it, after `owe`.

        Raises:
            StageFailure: It was not opened, or supplies a sandbox.
            OweError: Its cookies cannot be kept.
        """
        body = {**self._identity(), "task_id": encode(task_id), "task_data": dict(task_data)}
        answered = await self._call("seed", "seed_session", body)
        self.cookies = cookies_set_by(answered.response)
        if self.cookies:
            self.owe()
        if answered.body.get("sandbox_access") is not None:
            raise StageFailure(
                "seed",
                "the Resources Server supplies a sandbox, and /run uses the host: submit the episode to an "
                "Environment Server",
                terminal=True,
            )

    async def verify(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """The verdict.

        Raises:
            StageFailure: There is none, or it has no reward.
        """
        verdict = (await self._call("verification", "verify", body)).body
        reward = verdict.get("reward")
        if isinstance(reward, bool) or not isinstance(reward, int | float):
            raise StageFailure(
                "verification", f"verify: reward: expected a number, got {reward!r}", terminal=False
            )
        return verdict

    async def close(self) -> None:
        """Close it, also after a seed that failed: what became of it is not known.

        Nobody waits for it longer than its limit, the end of the server neither; a close that failed stays
        owed, for the next server.
        """
        with anyio.move_on_after(CLOSE_LIMIT_S, shield=True) as bound:
            await self._close()
        if bound.cancelled_caught:
            log.warning("session %s of the Resources Server: not closed in time", self.session_id)

    async def _close(self) -> None:
        for attempt in range(CLOSE_TRIES):
            if attempt:
                await anyio.sleep(CLOSE_RETRY_DELAY_S)
            try:
                await self._call("cleanup", "close_session", self._identity())
            except StageFailure as error:
                # The grade was earned before, and stands.
                log.warning("session %s of the Resources Server: %s", self.session_id, error)
                if not error.terminal:
                    continue
            self.owed.drop(self.session_id)
            return

    def _identity(self) -> dict[str, Any]:
        return {"resources_session_id": self.session_id, "episode_id": encode(self.episode_id)}

    async def _call(self, stage: Stage, name: str, body: Mapping[str, Any]) -> Answered:
        url = f"{self.base_url.rstrip('/')}/{name}"
        retries = Retries(window_s=self.timeout_s)
        try:
            with anyio.fail_after(self.timeout_s):
                return await call(self.client, stage, name, url, body, cookies=self.cookies, retries=retries)
        except TimeoutError as error:
            raise StageFailure(
                stage, f"{name} took longer than {self.timeout_s:g} s", terminal=False
            ) from error
