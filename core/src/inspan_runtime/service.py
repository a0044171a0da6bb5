"""The Agent Server without HTTP: sessions by id, requests in, status and body out.

All rules of the session API are the machine's; this file finds the session that a request is about, keeps
contents that the machine never sees (responses, observations), and forgets what is over.
"""

from __future__ import annotations

import logging
import pathlib
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any

import anyio

from inspan_core.errors import InspanError, RequestRefused
from inspan_core.events import ActivateRequested, CloseRequested, SeedRequested
from inspan_core.findings import Cookie, Path
from inspan_core.plugins import Plugins
from inspan_core.relay import Harness
from inspan_core.session import Phase
from inspan_core.wire import CloseRequest, SeedRequest
from inspan_runtime.budgets import lifetime_fault, resolve_agent_timeout
from inspan_runtime.contents import Record, error_answer, to_answer
from inspan_runtime.driver_needs import Follow
from inspan_runtime.grants import check_grants, effective_tool_accesses, usable_grants
from inspan_runtime.harness_work import HarnessWork, ProviderFactory, RunParser, in_worker_thread
from inspan_runtime.host_calls import HostCall, HostCalls, HostRequest
from inspan_runtime.install_cache import RuntimeCache
from inspan_runtime.journal import Journal, JournalError
from inspan_runtime.orphans import Ownership, reap_orphans
from inspan_runtime.outliving import OutlivingTasks
from inspan_runtime.places import check_place
from inspan_runtime.recovery import Recovery
from inspan_runtime.requests import check_request
from inspan_runtime.service_settings import Answer, ServiceSettings, SessionEvidence
from inspan_runtime.sessions import SessionTable
from inspan_runtime.views import SessionViews
from inspan_runtime.waiting import Gone, unless_gone

OVER = frozenset({Phase.NEW, Phase.CLOSED, Phase.FENCED})
__all__ = ["AgentService", "Answer", "ServiceSettings", "SessionEvidence"]

NO_HOST = (
    "this server runs nothing without an agent session: seed one, or set host_execution: true in its "
    "configuration, which runs the harness on the server's own host, without isolation"
)

SHUTDOWN_STEPS = 5
"""A close has at most so many steps, each with its own budget."""

log = logging.getLogger(__name__)


class AgentService(SessionViews):
    """Serves the sessions of one harness. An async context manager: its tasks live in it.

    Args:
        harness: The loaded harness.
        providers: Makes a provider client for each configured block, by name.
        settings: See there.
        cache: The host's runtime archives.
        journal: Where sessions are kept, or None: they end with the process.
        plugins: Observers are called with each transition; None for none.
        run_parser: Where the harness's parser runs.

    Raises:
        JournalError: What the journal holds cannot be read.
    """

    def __init__(
        self,
        harness: Harness,
        providers: Mapping[str, ProviderFactory],
        settings: ServiceSettings,
        *,
        cache: RuntimeCache,
        journal: Journal | None = None,
        plugins: Plugins | None = None,
        run_parser: RunParser = in_worker_thread,
    ) -> None:
        self.harness = harness
        self.settings = settings
        self._providers = providers
        self._cache = cache
        self._run_parser = run_parser
        self._journal = journal
        self._tasks: OutlivingTasks | None = None
        self._sessions = SessionTable(
            settings,
            spawn=self._spawn,
            make_work=self._work,
            journal=journal,
            observers=(partial(_observe, plugins),) if plugins is not None and plugins.is_observed else (),
        )
        self._ownership = None if settings.server_id is None else Ownership(server=settings.server_id)
        self._owned = settings.owned
        if settings.owned is not None and self._ownership is not None:
            self._owned = self._ownership.marked(settings.owned)
        self._sessions.read()
        self.host = self._host_calls()

    async def __aenter__(self) -> AgentService:
        if self.host is not None:
            await self.host.sweep()
        self._tasks = OutlivingTasks()
        await self._tasks.open()
        self._sessions.resume()
        self._reap_orphans()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks = self._tasks
        if tasks is None:
            return
        with anyio.CancelScope(shield=True):
            timeout_s = SHUTDOWN_STEPS * self.settings.session.close_step_timeout_s
            if self._journal is None:
                # Nobody would find these sessions again.
                await self.close_all(timeout_s=timeout_s)
            elif self.host is not None:
                await self.host.close_all(timeout_s=timeout_s)
        self._tasks = None
        try:
            await tasks.close()
        finally:
            if self._journal is not None:
                self._journal.close()

    def close_journal(self) -> None:
        """Write what waits and let go of the journal: for a process that ends without leaving its block."""
        if self._journal is not None:
            self._journal.close()

    async def close_all(self, *, timeout_s: float) -> list[str]:
        """Close every open session and wait for it.

        Args:
            timeout_s: Seconds for all of them together.

        Returns:
            The ids of the sessions, and of the host calls, that could not be closed.
        """
        for record in self._sessions:
            if record.driver.session.phase not in OVER:
                close = CloseRequested(
                    at=anyio.current_time(), waiter=None, cookie=Cookie.SAME, same_episode=True
                )
                with suppress(JournalError):  # It stays open, and is named as such.
                    record.driver.deliver(close)
        with anyio.move_on_after(timeout_s):
            if self.host is not None:
                await self.host.close_all(timeout_s=timeout_s)
            while any(record.driver.busy for record in self._sessions):
                await self._sessions.moved()
        calls = () if self.host is None else self.host.phases
        return [*calls, *(name for name, phase in self._sessions.phases.items() if phase not in OVER)]

    async def seed(
        self, body: SeedRequest, digest: str, cookie: Cookie, *, gone: Gone | None = None
    ) -> Answer:
        """Open a session, join its opening, or repeat the answer.

        Args:
            body: The decoded request.
            digest: Of the normalised body.
            cookie: What the cookie says, compared with the body's session id.
            gone: Watches the client's connection.

        Raises:
            WaiterGone: The client is gone. What it asked for goes on.
        """
        session_id = body.agent_session_id
        record = self._sessions.get(session_id)
        if record is None and not self._sessions.recovery.is_over:
            await unless_gone(gone, self._sessions.recovery.over)
            record = self._sessions.get(session_id)
        if record is None:
            try:
                record = self._seeded_record(body)
            except RequestRefused as refusal:
                return error_answer(422, str(refusal))
        with self._sessions.taken_back(record):
            reply = await record.driver.ask(
                lambda waiter, at: SeedRequested(
                    at=at,
                    waiter=waiter,
                    body_digest=digest,
                    owned=body.sandbox_access is None,
                    cookie=cookie,
                ),
                gone=gone,
            )
        return to_answer(session_id, record, reply)

    async def activate(
        self,
        capture_key: str | None,
        token_capture: bool,
        body: Mapping[str, Any],
        digest: str,
        session_id: str | None,
        cookie: Cookie,
        *,
        gone: Gone | None = None,
    ) -> Answer:
        """Run the session's one activation, join it, or repeat its answer.

        Args:
            capture_key: From the path, or None for an unprefixed path.
            token_capture: Whether the path had the token capture segment.
            body: The Responses request.
            digest: Of the normalised body.
            session_id: From the cookie, or None.
            cookie: ABSENT, SAME or MALFORMED.
            gone: Watches the client's connection.

        Raises:
            WaiterGone: The client is gone. What it asked for goes on.
        """
        if cookie is Cookie.MALFORMED:
            return error_answer(409, "the session cookie is malformed: never a call without a session")
        if session_id is None:
            called = HostRequest(
                capture_key=capture_key, token_capture=token_capture, body=body, digest=digest
            )
            return await unless_gone(gone, lambda: self._without_session(called))
        record = self._sessions.get(session_id)
        seed = None if record is None else record.seed
        if record is None or seed is None:
            return error_answer(409, f"agent session {session_id!r} is not open here")
        try:
            check_request(self.harness.spec, body)
            run_timeout_s = resolve_agent_timeout(body.get("metadata"), self.settings.run_timeout_s)
        except RequestRefused as refusal:
            return error_answer(422, str(refusal))
        bound = partial(self._sessions.bind_activation, record, token_capture, body)
        with self._sessions.taken_back(record):
            reply = await record.driver.ask(
                lambda waiter, at: ActivateRequested(
                    at=at,
                    waiter=waiter,
                    body_digest=f"{digest}:{int(token_capture)}",
                    cookie=cookie,
                    path=_path_finding(capture_key, seed),
                    run_timeout_s=run_timeout_s,
                ),
                gone=gone,
                bind=bound,
            )
        return to_answer(session_id, record, reply)

    async def close(self, body: CloseRequest, cookie: Cookie, *, gone: Gone | None = None) -> Answer:
        """Close a session, join its closing, or repeat the answer; also for an id never seeded.

        Raises:
            WaiterGone: The client is gone. The close goes on.
        """
        session_id = body.agent_session_id
        record = self._sessions.get(session_id)
        if record is None:
            record = self._sessions.add_unseeded(session_id, body.episode_id)
        same = record.episode_id == body.episode_id
        with self._sessions.taken_back(record):
            reply = await record.driver.ask(
                lambda waiter, at: CloseRequested(at=at, waiter=waiter, cookie=cookie, same_episode=same),
                gone=gone,
            )
        return to_answer(session_id, record, reply)

    @property
    def recovery(self) -> Recovery:
        """What a dead server left, until it is taken over or reaped."""
        return self._sessions.recovery

    def follow(self, follow: Follow) -> None:
        """Have something called with each committed transition."""
        self._sessions.followers.append(follow)

    def _reap_orphans(self) -> None:
        owned, ownership, recovery = self._owned, self._ownership, self._sessions.recovery
        if owned is None or ownership is None:
            return
        recovery.add(ownership)
        self._spawn(
            partial(
                reap_orphans,
                ownership,
                self._providers[owned.provider],
                self._sessions.knows_sandbox,
                partial(recovery.done, ownership),
            )
        )

    # --- records ---------------------------------------------------------------------------------

    def _seeded_record(self, body: SeedRequest) -> Record:
        grants = effective_tool_accesses(body, self.settings.tool_accesses)
        skipped = check_grants(self.harness.spec, grants)
        check_place(body, self._owned, self._providers)
        self._warn_of_lifetime(body)
        work = self._work(body)
        work.gaps.extend(skipped)
        return self._sessions.add_seeded(body, work)

    def _warn_of_lifetime(self, seed: SeedRequest) -> None:
        if self._owned is None or seed.sandbox_access is not None:
            return
        settings = self.settings
        fault = lifetime_fault(
            self._owned.spec.ttl_s, settings.session.install_timeout_s, settings.run_timeout_s
        )
        if fault is not None:
            log.warning("session %s: %s", seed.agent_session_id, fault)

    def _work(self, seed: SeedRequest) -> HarnessWork:
        return HarnessWork(
            harness=self.harness,
            seed=seed,
            providers=self._providers,
            owned=self._owned if seed.sandbox_access is None else None,
            options=self.settings.options,
            cache=self._cache,
            uses_scratch=self.settings.session_dir_root is None,
            run_parser=self._run_parser,
            model_url=self.settings.model_base_url,
            tool_accesses=usable_grants(
                self.harness.spec, effective_tool_accesses(seed, self.settings.tool_accesses)
            ),
        )

    def _spawn(self, task: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if self._tasks is None:
            raise InspanError("the service is not running: use it as an async context manager")
        self._tasks.start(task)

    def _host_calls(self) -> HostCalls | None:
        if self.settings.host_dir is None:
            return None
        return HostCalls(
            self.harness,
            self.settings,
            root=pathlib.Path(self.settings.host_dir),
            cache=self._cache,
            slots=self._sessions.slots,
            spawn=self._spawn,
            run_parser=self._run_parser,
        )

    async def _without_session(self, request: HostRequest) -> Answer:
        begun = self.start_host_call(request)
        return begun if isinstance(begun, Answer) else await begun.wait()

    def start_host_call(self, request: HostRequest) -> HostCall | Answer:
        """Run a request on the host; an answer where it is refused, as what belongs to a session is."""
        key = request.capture_key
        if key is not None and self._sessions.holds(key):
            return error_answer(
                409, f"rollout {key!r} belongs to an agent session: its session cookie is missing"
            )
        return error_answer(422, NO_HOST) if self.host is None else self.host.start(request)


def _observe(plugins: Plugins, transition: Mapping[str, Any]) -> None:
    for problem in plugins.observe(transition):
        log.warning("an observer failed: %s", problem)


def _path_finding(capture_key: str | None, seed: SeedRequest) -> Path:
    if capture_key is None:
        return Path.UNPREFIXED
    return Path.MATCHES if capture_key == seed.episode_id.capture_key else Path.OTHER_KEY
