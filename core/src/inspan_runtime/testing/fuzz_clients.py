"""The clients of a fuzzed server: what they ask for, and how they go on when the server dies under them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import anyio
from attrs import define, field

from inspan_core.findings import Cookie
from inspan_core.wire import CloseRequest, EpisodeId, SandboxAccess, SeedRequest, TaskId
from inspan_runtime.service import AgentService
from inspan_runtime.service_settings import Answer
from inspan_runtime.testing.fake_world import FakeWorld
from inspan_runtime.testing.fuzz_witness import Witness
from inspan_runtime.testing.scenarios import Ask, Visit

RECONNECT_S = 0.5
"""A client whose connection was lost asks again after so long, without end."""
CLOSE_AGAIN_S = 5.0
SEED_TRIES = 3
CLOSE_TRIES = 4


@define
class Subject:
    """What the clients of one session agree on.

    Attributes:
        name: The session's id.
        access: The sandbox that was supplied, or None.
        request: The Responses request.
        has_cookie: Whether a seed was answered, so that its cookie is known.
    """

    name: str
    access: SandboxAccess | None
    request: Mapping[str, Any]
    has_cookie: bool = False

    @property
    def episode(self) -> EpisodeId:
        """The session's episode."""
        return EpisodeId(rollout_id=f"rollout-{self.name}")

    async def ask(self, service: AgentService, ask: Ask) -> Answer:
        """Send one request, as a client with the session's cookie would."""
        cookie = Cookie.SAME if self.has_cookie else Cookie.ABSENT
        match ask:
            case Ask.SEED | Ask.OTHER_SEED:
                task = "one" if ask is Ask.SEED else "another"
                body = SeedRequest(
                    agent_session_id=self.name,
                    episode_id=self.episode,
                    task_id=TaskId(taskset="fuzz", task_id=task),
                    tool_accesses=(),
                    sandbox_access=self.access,
                )
                answer = await service.seed(body, f"seed {task}", cookie)
                self.has_cookie = self.has_cookie or answer.status == 200
                return answer
            case Ask.ACTIVATE | Ask.OTHER_ACTIVATE:
                request = (
                    self.request if ask is Ask.ACTIVATE else {**self.request, "metadata": {"other": "1"}}
                )
                session = self.name if self.has_cookie else None
                return await service.activate(
                    self.episode.capture_key, False, request, ask.value, session, cookie
                )
            case Ask.CLOSE:
                return await service.close(
                    CloseRequest(agent_session_id=self.name, episode_id=self.episode), cookie
                )


@define(eq=False)
class Client:
    """Asks for one session, and tells the witness what it was told.

    Attributes:
        who: For the log.
        asking: What it waits for.
        asked: What it has begun to ask for.
    """

    who: str
    subject: Subject
    world: FakeWorld
    witness: Witness
    asking: Ask | None = None
    asked: dict[Ask, anyio.Event] = field(factory=dict)

    def begun(self, ask: Ask) -> anyio.Event:
        """Set when it has begun to ask for that."""
        return self.asked.setdefault(ask, anyio.Event())

    async def ask(self, service: AgentService, ask: Ask) -> Answer:
        """Ask and wait for the answer; being cancelled is going away."""
        if self.asking is not None:
            await anyio.sleep(RECONNECT_S)
        self.asking = ask
        self.begun(ask).set()
        self.world.say(f"{self.who} asks: {ask.value} {self.subject.name}")
        answer = await self.subject.ask(service, ask)
        self.asking = None
        detail = f" ({answer.body['detail']})" if "detail" in answer.body else ""
        self.world.say(
            f"{self.who} is told: {ask.value} {self.subject.name} -> {answer.status}{detail}"[:300]
        )
        self.witness.answered(self.subject.name, ask, answer)
        return answer


@define(eq=False)
class MainClient(Client):
    """Seeds, activates and closes, as an environment does.

    Attributes:
        todo: What is still to be done.
        thinks_s: How long it does nothing before its next request.
        activated: The answer to the activation, or None.
        closed: The answer of the close, or None.
    """

    todo: list[Ask] = field(factory=lambda: [Ask.SEED, Ask.ACTIVATE, Ask.CLOSE])
    thinks_s: float = 0.0
    activated: Answer | None = None
    closed: Answer | None = None
    _tries: int = 0

    async def live(self, service: AgentService) -> None:
        """Go on from where it was."""
        while self.todo:
            ask = self.todo[0]
            answer = await self.ask(service, ask)
            self._tries += 1
            self._go_on(ask, answer)
            if self.todo:
                await anyio.sleep(CLOSE_AGAIN_S if self.todo[0] is ask else self.thinks_s)

    def _go_on(self, ask: Ask, answer: Answer) -> None:
        over = answer.status < 500
        if ask is Ask.SEED:
            over = over or self._tries >= SEED_TRIES
            if over and answer.status != 200:
                self.todo = [ask, Ask.CLOSE]
        elif ask is Ask.ACTIVATE:
            self.activated, over = answer, True
        else:
            self.closed, over = answer, over or self._tries >= CLOSE_TRIES
        if over:
            self.todo, self._tries = self.todo[1:], 0


@define(eq=False)
class Visitor(Client):
    """Asks once, and perhaps does not wait for the answer.

    Attributes:
        visit: When and what for.
        is_over: Whether it has its answer, or is gone.
    """

    visit: Visit = field(kw_only=True)
    is_over: bool = False

    async def live(self, service: AgentService, main: MainClient) -> None:
        """Come, ask, and perhaps go.

        Args:
            main: Once it is through, nobody else needs to come any more.
        """
        if self.is_over:
            return
        visit = self.visit
        if self.asking is None and visit.beside is not None:
            await main.begun(visit.beside).wait()
        elif self.asking is None:
            await self.world.until_calls(visit.at_call)
        if self.asking is None and not main.todo:
            return
        with anyio.CancelScope() as scope:

            def leave() -> None:
                if self.asking is not None:
                    self.world.say(f"{self.who} goes away")
                    scope.cancel()

            if visit.stays is not None:
                self.world.when_called(self.world.calls + max(visit.stays, 1), leave)
            await self.ask(service, visit.ask)
        self.asking, self.is_over = None, True
