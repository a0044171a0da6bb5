"""The sessions of a Resources Server: who owns a sandbox, and what may still happen to it."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping

import anyio
from attrs import define, field, frozen

from inspan_core.errors import InspanError, SandboxError
from inspan_core.sandbox import Sandbox, SandboxProvider, SandboxSpec
from inspan_core.wire import DirectSandboxConnection, EpisodeId, SandboxAccess
from inspan_server.environment.bodies import Refused
from inspan_server.environment.preparation import Verification, prepare_repository, verify_repository
from inspan_server.environment.task import Task

MAX_FENCES = 10_000
BeforeStop = Callable[[Sandbox, str], Awaitable[None]]
log = logging.getLogger(__name__)


@frozen(kw_only=True)
class Workplace:
    """What every sandbox gets, and how an Agent Server reaches it.

    Attributes:
        workdir: The repository's absolute folder inside, or a function of the session id (for a
            provider that shares the host's files).
        provider_config_ref: The provider's name in the Agent Server's configuration.
        reach: As `SandboxSpec.reach`: the Model Server's URL.
        env: As `SandboxSpec.env`.
        ttl_s: As `SandboxSpec.ttl_s`.
        create_timeout_s: Bound of creating one sandbox, in seconds.
        stop_timeout_s: Bound of stopping one, in seconds.
    """

    workdir: str | Callable[[str], str] = "/app"
    provider_config_ref: str = "sandbox"
    reach: tuple[str, ...] = ()
    env: Mapping[str, str] = field(factory=dict)
    ttl_s: float | None = 6 * 3600.0
    create_timeout_s: float = 120.0
    stop_timeout_s: float = 30.0

    def workdir_of(self, session_id: str) -> str:
        return self.workdir if isinstance(self.workdir, str) else self.workdir(session_id)


@define(eq=False, kw_only=True)
class ResourcesSession:
    """One episode's sandbox.

    Attributes:
        closing: A close was accepted: from now on nothing but stopping may happen.
        closed_at: Monotonic seconds when the sandbox was confirmed stopped, or None.
    """

    session_id: str
    episode_id: EpisodeId
    task: Task
    seed_digest: str
    sandbox: Sandbox | None = None
    access: SandboxAccess | None = None
    closing: bool = False
    closed_at: float | None = None
    verification: Verification | None = None
    verified_digest: str | None = None
    working: anyio.CancelScope | None = None
    lock: anyio.Lock = field(factory=anyio.Lock)


@define(kw_only=True)
class Sessions:
    """All sessions; every method may be called again after it failed, and by several callers at once."""

    provider: SandboxProvider
    workplace: Workplace
    observe: Callable[[str, str], None]
    close_retry_window_s: float
    before_stop: BeforeStop | None = None
    _sessions: dict[str, ResourcesSession] = field(factory=dict, init=False)
    _fences: dict[str, tuple[EpisodeId, float]] = field(factory=dict, init=False)

    def find(self, session_id: str) -> ResourcesSession | None:
        self._forget_old()
        return self._sessions.get(session_id)

    def opened(
        self, session_id: str, episode_id: EpisodeId, task: Task, seed_digest: str
    ) -> ResourcesSession:
        """The session of a seed, new or known.

        Raises:
            Refused: 409: seeded with another body, closed, or closed before it was seeded.
        """
        session = self.find(session_id)
        if session_id in self._fences:
            raise Refused(409, f"session {session_id} was closed before it was seeded")
        if session is None:
            session = ResourcesSession(
                session_id=session_id, episode_id=episode_id, task=task, seed_digest=seed_digest
            )
            self._sessions[session_id] = session
        if session.seed_digest != seed_digest:
            raise Refused(409, f"session {session_id} was seeded with another body")
        if session.closing:
            raise Refused(409, f"session {session_id} is closed or closing")
        return session

    async def set_up(self, session: ResourcesSession) -> SandboxAccess:
        """Create the sandbox and prepare the task, once; callers at the same time join.

        Raises:
            Refused: 409: a close came in between.
            SandboxError: It failed, nothing is left, and the same seed may be tried again.
        """
        async with session.lock:
            if session.access is None and not session.closing:
                try:
                    await self._create(session)
                except BaseException:
                    with anyio.CancelScope(shield=True):
                        await self._undo(session)
                    raise
            if session.closing or session.access is None:
                # The close may have given up waiting: what came out of the set-up is stopped here.
                await self._undo(session)
                raise Refused(409, f"session {session.session_id} was closed while it was set up")
            return session.access

    async def _create(self, session: ResourcesSession) -> None:
        workdir = self.workplace.workdir_of(session.session_id)
        spec = SandboxSpec(
            workdir=workdir,
            env=self.workplace.env,
            ttl_s=self.workplace.ttl_s,
            labels={"inspan-resources-session": session.session_id},
            reach=self.workplace.reach,
        )
        self.observe(session.session_id, "create_sandbox")
        session.sandbox = await self.provider.create(
            spec, key=session.session_id, timeout_s=self.workplace.create_timeout_s
        )
        if session.closing:
            return
        self.observe(session.session_id, "prepare_task")
        with anyio.CancelScope() as session.working:
            await prepare_repository(session.sandbox, session.task, workdir)
        session.working = None
        if not session.closing:
            session.access = SandboxAccess(
                connection=DirectSandboxConnection(
                    kind="direct",
                    provider_config_ref=self.workplace.provider_config_ref,
                    descriptor=session.sandbox.descriptor,
                ),
                workdir=workdir,
            )

    async def _undo(self, session: ResourcesSession) -> None:
        """Clean up after a failed set-up; what cannot be cleaned is kept for close."""
        try:
            await self._stop(session)
        except InspanError:
            session.closing = True

    async def verify(self, session: ResourcesSession, digest: str) -> Verification:
        """Grade the task, once; an identical request gets the first result again.

        Raises:
            Refused: 409: not seeded, closing, or verified with another body.
            SandboxError: The sandbox failed; nothing is kept and a retry may help.
        """
        async with session.lock:
            if session.verification is not None:
                if session.verified_digest != digest:
                    raise Refused(409, f"session {session.session_id} was verified with another body")
                return session.verification
            if session.closing or session.access is None or session.sandbox is None:
                raise Refused(409, f"session {session.session_id} is not open")
            self.observe(session.session_id, "run_tests")
            verification: Verification | None = None
            with anyio.CancelScope() as session.working:
                verification = await verify_repository(session.sandbox, session.task, session.access.workdir)
            session.working = None
            if verification is None:
                raise Refused(409, f"session {session.session_id} was closed while it was verified")
            session.verification, session.verified_digest = verification, digest
            return verification

    async def close(self, session_id: str, episode_id: EpisodeId) -> None:
        """Stop the sandbox and confirm it.

        Raises:
            Refused: 409: another episode's session.
            SandboxError: It could not be stopped; the session is kept and close may be tried again.
        """
        session = self.find(session_id)
        owner = session.episode_id if session is not None else self._fences.get(session_id, (episode_id,))[0]
        if owner != episode_id:
            raise Refused(409, f"session {session_id} belongs to another episode")
        if session is None:
            self._fence(session_id, episode_id)
            return
        session.closing = True
        if session.working is not None:
            session.working.cancel()
        async with session.lock:
            if session.closed_at is None:
                await self._look_once_more(session)
                self.observe(session_id, "stop_sandbox")
                await self._stop(session)
                session.closed_at = time.monotonic()

    async def _look_once_more(self, session: ResourcesSession) -> None:
        sandbox, access = session.sandbox, session.access
        if self.before_stop is None or sandbox is None or access is None:
            return
        with anyio.move_on_after(self.workplace.stop_timeout_s):
            try:
                await self.before_stop(sandbox, access.workdir)
            except InspanError as error:
                # Whatever it wanted to see, it must not keep the sandbox alive.
                log.warning("session %s: the last look failed: %s", session.session_id, error)

    async def stop_all(self) -> None:
        """Stop what is left, each within its bound; what cannot be stopped is left to its lifetime limit."""
        async with anyio.create_task_group() as tasks:
            for session in list(self._sessions.values()):
                tasks.start_soon(self._close_quietly, session)

    async def _close_quietly(self, session: ResourcesSession) -> None:
        try:
            await self.close(session.session_id, session.episode_id)
        except InspanError:
            return

    async def _stop(self, session: ResourcesSession) -> None:
        try:
            with anyio.fail_after(self.workplace.stop_timeout_s):
                if session.sandbox is not None:
                    await session.sandbox.stop()
                else:
                    # A creation that failed without saying what became of it.
                    await self.provider.stop(session.session_id, timeout_s=self.workplace.stop_timeout_s)
        except TimeoutError as error:
            bound = self.workplace.stop_timeout_s
            raise SandboxError(f"sandbox of {session.session_id}: not stopped within {bound:g} s") from error
        session.sandbox, session.access = None, None

    def _fence(self, session_id: str, episode_id: EpisodeId) -> None:
        # Anyone can ask for fences, so the oldest gives way.
        while len(self._fences) >= MAX_FENCES:
            del self._fences[next(iter(self._fences))]
        self._fences.setdefault(session_id, (episode_id, time.monotonic()))

    def _forget_old(self) -> None:
        oldest = time.monotonic() - self.close_retry_window_s
        for key, session in list(self._sessions.items()):
            if session.closed_at is not None and session.closed_at < oldest:
                del self._sessions[key]
        for key, (_, fenced_at) in list(self._fences.items()):
            if fenced_at < oldest:
                del self._fences[key]
