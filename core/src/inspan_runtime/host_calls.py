"""Activations without a session: the harness runs on the server's own host, and nothing is isolated.

Each call is a session of its own that nobody else sees, with the machine, the ladder and the supervisor of
every other: the same proof of the harness's end before an answer of 200, the same order of release. Its
sandbox is a private folder. It is never journalled: a server that dies takes its calls with it, and the next
one ends and removes what they left.

A call under a rollout's prefix is known by it: the same request again joins it, or gets its answer again for
the retry window. One without a prefix has no identity, so each is a call of its own.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import anyio
from attrs import define, field, frozen

from inspan_core.constraints import NAME_PATTERN
from inspan_core.errors import RequestRefused
from inspan_core.events import ActivateRequested, CloseRequested, SeedRequested
from inspan_core.findings import Cookie, Outcome
from inspan_core.findings import Path as PathFinding
from inspan_core.machine import new_session
from inspan_core.relay import Harness
from inspan_core.sandbox import SandboxSpec
from inspan_core.session import Evidence, Phase
from inspan_core.wire import EpisodeId, SeedRequest, TaskId, ToolAccess
from inspan_runtime.budgets import resolve_agent_timeout
from inspan_runtime.contents import Record, error_answer, to_answer
from inspan_runtime.driver import SessionDriver
from inspan_runtime.grants import check_grants, usable_grants
from inspan_runtime.harness_work import Activation, OwnedSandbox, RunParser, in_worker_thread
from inspan_runtime.host_install import HostWork, InstallGate
from inspan_runtime.host_place import NAME, HostPlace, sweep_host_calls
from inspan_runtime.install_cache import RuntimeCache
from inspan_runtime.perform import Performer, Slots
from inspan_runtime.requests import check_request
from inspan_runtime.room import Room, Spawn
from inspan_runtime.service_settings import Answer, ServiceSettings

SWEEP_PAUSES_S = (0.1, 0.2, 0.4, 0.8)
REPLAY_LIMIT = 256
"""How many answers are kept for replays: each may be megabytes."""

SHUTTING_DOWN = "the server is shutting down"
OVER = frozenset({Phase.NEW, Phase.CLOSED, Phase.FENCED})
CAPTURE_KEY = re.compile(NAME_PATTERN.removesuffix("$") + r"\Z")

log = logging.getLogger(__name__)

CallKey = tuple[str, bool, str]
"""Capture key, token capture, digest of the body."""


@frozen(kw_only=True)
class HostRequest:
    """What is asked of the host path.

    Attributes:
        capture_key: From the path, or None.
        token_capture: Whether the path had the token capture segment.
        body: The Responses request.
        digest: Of the normalised body.
        tool_accesses: Grants beside the configuration's, which they replace by name.
    """

    capture_key: str | None
    token_capture: bool
    body: Mapping[str, Any] = field(repr=False)
    digest: str
    tool_accesses: tuple[ToolAccess, ...] = field(default=(), repr=False)


@define(eq=False)
class HostCall:
    """One call under way, or over.

    Attributes:
        call_id: Random; names its folder.
        record: Its session.
        answer: What it is answered; None while it runs.
        answered: Set with `answer`.
        over: Set when its folder is gone, and when the release has failed for the first time.
        is_released: Whether the harness was proven stopped and everything of the call is gone.
        answered_at: Monotonic seconds.
        failed_response: What the parser made of a run that failed although its harness was proven stopped,
            perhaps empty; else None.
        resources_cookies: The jar that tool calls changed, or None.
    """

    call_id: str
    record: Record
    answer: Answer | None = None
    answered: anyio.Event = field(factory=anyio.Event)
    over: anyio.Event = field(factory=anyio.Event)
    gone: anyio.Event = field(factory=anyio.Event)
    is_released: bool = False
    answered_at: float = 0.0
    failed_response: Mapping[str, Any] | None = None
    resources_cookies: Mapping[str, str] | None = field(default=None, repr=False)

    async def wait(self) -> Answer:
        """The answer, as soon as there is one. Being cancelled only forgets the one who waits."""
        await self.answered.wait()
        assert self.answer is not None  # set before the event
        return self.answer

    def keep_what_is_asked_later(self) -> None:
        """Take from the run what outlives it."""
        work, evidence = self.record.work, self.record.driver.session.run.evidence
        parsed = None if work is None else work.parsed
        if work is None or parsed is None or evidence is not Evidence.CONFIRMED:
            return
        self.resources_cookies = work.resources_cookies
        if parsed.outcome in (Outcome.FAILED, Outcome.UNPROCESSABLE):
            self.failed_response = parsed.response or {}


class HostCalls:
    """The host path of one service.

    Args:
        harness: The loaded harness.
        settings: The service's.
        root: Folder of the calls' private folders.
        cache: The host's runtime archives.
        slots: Shared with the sessions.
        spawn: Starts tasks that outlive requests; kept for those of others.
        run_parser: Where the harness's parser runs.
    """

    def __init__(
        self,
        harness: Harness,
        settings: ServiceSettings,
        *,
        root: Path,
        cache: RuntimeCache,
        slots: Slots,
        spawn: Spawn,
        run_parser: RunParser = in_worker_thread,
    ) -> None:
        self._harness = harness
        self._settings = settings
        self._root = root
        self._cache = cache
        self._slots = slots
        self.spawn = spawn
        self._run_parser = run_parser
        self._gate = InstallGate()
        self._open: dict[str, HostCall] = {}
        self._known: dict[CallKey, HostCall] = {}
        self._is_ending = False

    async def sweep(self) -> None:
        """End and remove what the calls of killed servers left."""
        for pause_s in SWEEP_PAUSES_S:
            swept = await anyio.to_thread.run_sync(sweep_host_calls, self._root)
            for call_id in swept.ended:
                log.warning("ended and removed what %s of a killed server had left", call_id)
            if not swept.left:
                return
            # A child that the killed server was about to start holds its folders' locks for a moment longer.
            await anyio.sleep(pause_s)
        for call_id in swept.left:
            log.error("the host call's folder %s of a killed server is still in use", self._root / call_id)

    @property
    def phases(self) -> Mapping[str, str]:
        """The phase of the run of each call that is under way, by the call's id."""
        return {name: call.record.driver.session.run.phase.name for name, call in self._open.items()}

    def start(self, request: HostRequest) -> HostCall | Answer:
        """The call that answers a request, begun or found; an answer where it is refused at once."""
        if self._is_ending:
            return error_answer(503, SHUTTING_DOWN)
        key = request.capture_key
        if key is not None and not CAPTURE_KEY.match(key):
            return error_answer(422, f"the path's rollout {key[:100]!r} is no rollout id")
        self._forget_old()
        if key is not None:
            known = self._known.get((key, request.token_capture, request.digest))
            if known is not None:
                return known
        try:
            check_request(self._harness.spec, request.body)
            run_timeout_s = resolve_agent_timeout(request.body.get("metadata"), self._settings.run_timeout_s)
            call = self._new_call(request)
        except RequestRefused as refusal:
            return error_answer(422, str(refusal))
        self.spawn(lambda: self._run(call, request.digest, run_timeout_s))
        self._open[call.call_id] = call
        if key is not None:
            self._known[key, request.token_capture, request.digest] = call
        return call

    async def runs_ended(self, *, timeout_s: float) -> None:
        """Refuse new calls, and let those that run end by themselves for a while."""
        self._is_ending = True
        with anyio.move_on_after(timeout_s):
            for call in list(self._open.values()):
                await call.gone.wait()

    async def close_all(self, *, timeout_s: float) -> list[str]:
        """Refuse new calls, stop those that run, and wait for their release.

        Args:
            timeout_s: Seconds for all of them together.

        Returns:
            The ids of the calls that could not be released.
        """
        self._is_ending = True
        for call in list(self._open.values()):
            if call.record.driver.session.phase not in OVER:
                call.record.driver.deliver(_close(None, anyio.current_time()))
        with anyio.move_on_after(timeout_s):
            for call in list(self._open.values()):
                await call.gone.wait()
        return sorted(self._open)

    async def _run(self, call: HostCall, digest: str, run_timeout_s: float) -> None:
        record = call.record
        try:
            call.answer = await self._answer(record, digest, run_timeout_s)
            call.keep_what_is_asked_later()
        except BaseException:
            call.answer = error_answer(503, "the server ended before the call did")
            raise
        finally:
            call.answered_at = anyio.current_time()
            call.answered.set()
        if call.answer.status != 200:
            self._known = {key: each for key, each in self._known.items() if each is not call}
        try:
            if record.driver.session.phase is Phase.NEW:
                call.is_released = True  # The set-up failed and was undone.
            else:
                call.is_released = (await record.driver.ask(_close)).status == 200
            call.over.set()
            if not call.is_released:
                await call.gone.wait()  # The machine goes on trying by its timers.
        finally:
            record.driver.stop_timer()
            if record.work is not None:
                record.work.forget_run()
            call.over.set()
            call.gone.set()
            del self._open[call.call_id]

    async def _answer(self, record: Record, digest: str, run_timeout_s: float) -> Answer:
        driver = record.driver
        if self._is_ending:
            return error_answer(503, SHUTTING_DOWN)
        reply = await driver.ask(
            lambda waiter, at: SeedRequested(
                at=at, waiter=waiter, body_digest=digest, owned=True, cookie=Cookie.ABSENT
            )
        )
        if reply.status == 200:
            reply = await driver.ask(
                lambda waiter, at: ActivateRequested(
                    at=at,
                    waiter=waiter,
                    body_digest=digest,
                    cookie=Cookie.SAME,
                    path=PathFinding.MATCHES,
                    run_timeout_s=run_timeout_s,
                )
            )
        if reply.status == 409:
            # Nobody but a server that ends closes a call, and another server can run it.
            return error_answer(503, SHUTTING_DOWN)
        return to_answer(driver.session.name, record, reply)

    def _new_call(self, request: HostRequest) -> HostCall:
        call_id = f"host-{uuid.uuid4().hex}"
        place = HostPlace(self._root, call_id)
        work = self._work(request, place)
        room = Room(session_dir=place.session_dir, workdir=place.workdir)
        performer = Performer(
            work, room, spawn=self.spawn, slots=self._slots, supervision=self._settings.supervision
        )
        call: list[HostCall] = []

        def follow(transition: Mapping[str, Any]) -> None:
            phase, before = transition["phase"], transition["before"]
            if phase in (Phase.CLOSED.name, Phase.FENCED.name) and phase != before:
                call[0].gone.set()
            if phase in (Phase.CLOSING.name, Phase.CLOSE_FAILED.name):
                session = call[0].record.driver.session
                work.interrupted = session.activation_digest is not None and session.answer is None

        driver = SessionDriver(
            new_session(call_id, self._settings.session), performer, spawn=self.spawn, observers=(follow,)
        )
        record = Record(seed=work.seed, driver=driver, work=work, room=room, episode_id=work.seed.episode_id)
        call.append(HostCall(call_id, record))
        return call[0]

    def _work(self, request: HostRequest, place: HostPlace) -> HostWork:
        spec = self._harness.spec
        grants = {each.name: each for each in (*self._settings.tool_accesses, *request.tool_accesses)}
        skipped = check_grants(spec, grants.values())
        return HostWork(
            harness=self._harness,
            seed=_seed(place.call_id, grants.values()),
            providers={NAME: lambda: place},
            owned=OwnedSandbox(provider=NAME, spec=SandboxSpec(workdir=place.workdir)),
            options=self._settings.options,
            cache=self._cache,
            uses_scratch=False,
            activation=self._activation(request),
            tool_accesses=usable_grants(spec, grants.values()),
            run_parser=self._run_parser,
            gaps=list(skipped),
            gate=self._gate,
        )

    def _activation(self, request: HostRequest) -> Activation:
        base, key = self._settings.model_base_url.rstrip("/"), request.capture_key
        segment = "/training-token-capture" if request.token_capture else ""
        prefix = "" if key is None else f"/ng-rollout/{key}{segment}"
        return Activation(
            request=request.body,
            model_base_url=f"{base}{prefix}/v1",
            model_name=self._settings.model_name,
            model_key=self._settings.model_key(key or ""),
        )

    def _forget_old(self) -> None:
        """Keep answers for the retry window, and no more of them than the limit."""
        oldest = anyio.current_time() - self._settings.session.retry_window_s
        over = [key for key, call in self._known.items() if call.answer is not None]
        surplus = len(over) - REPLAY_LIMIT
        for number, key in enumerate(over):
            if number < surplus or self._known[key].answered_at < oldest:
                del self._known[key]


def _close(waiter: int | None, at: float) -> CloseRequested:
    return CloseRequested(at=at, waiter=waiter, cookie=Cookie.SAME, same_episode=True)


def _seed(call_id: str, grants: Iterable[ToolAccess]) -> SeedRequest:
    """The seed that nobody sent: the steps of a session take it for granted that there is one."""
    return SeedRequest(
        agent_session_id=call_id,
        episode_id=EpisodeId(rollout_id=call_id),
        task_id=TaskId(taskset=NAME, task_id=call_id),
        tool_accesses=tuple(grants),
    )
