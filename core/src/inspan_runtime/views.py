"""What operators see of a service's sessions, and what they may do to one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import anyio

from inspan_core.codec import encode
from inspan_core.events import Abandoned, CloseRequested
from inspan_core.findings import Cookie
from inspan_core.harness import Artifacts
from inspan_core.session import Phase, RunPhase
from inspan_runtime.contents import Record, to_answer
from inspan_runtime.service_settings import Answer, SessionEvidence
from inspan_runtime.session_view import view
from inspan_runtime.sessions import SessionTable


class SessionViews:
    """The operator's side of a service."""

    _sessions: SessionTable

    @property
    def phases(self) -> Mapping[str, str]:
        """The phase of each session, by id."""
        return {name: phase.name for name, phase in self._sessions.phases.items()}

    def evidence(self, session_id: str) -> SessionEvidence | None:
        """What is kept of a session, while its record is retained; None for an id that is not known."""
        record = self._sessions.get(session_id)
        if record is None:
            return None
        return SessionEvidence(
            receipt=record.room.receipt,
            processes=record.room.processes,
            artifacts=Artifacts() if record.work is None else record.work.artifacts,
            gradable=record.driver.session.gradable,
        )

    def view(self, session_id: str) -> dict[str, Any] | None:
        """One session as a JSON object; None for an id that is not known."""
        record = self._sessions.get(session_id)
        return None if record is None else _view(record)

    def views(self) -> list[dict[str, Any]]:
        """All sessions, in the order of their beginning."""
        return [_view(record) for record in self._sessions]

    def run_phases(self) -> Counter[RunPhase]:
        """How many sessions have which order in flight."""
        return Counter(record.driver.session.run.phase for record in self._sessions)

    @property
    def slots_taken(self) -> int:
        """How many runs hold a concurrency slot."""
        return self._sessions.slots.taken

    def gap_codes(self, session_id: str) -> list[str]:
        """The gaps in the answer of a session's close."""
        record = self._sessions.get(session_id)
        body = None if record is None else record.closed_body
        observations = None if body is None else body["agent_observations"]
        return [] if observations is None else [gap["code"] for gap in observations["gaps"]]

    async def close_by_operator(self, session_id: str) -> Answer | None:
        """Close a session as its client would; None for an id that is not known."""
        record = self._sessions.get(session_id)
        if record is None:
            return None
        reply = await record.driver.ask(
            lambda waiter, at: CloseRequested(at=at, waiter=waiter, cookie=Cookie.SAME, same_episode=True)
        )
        return to_answer(session_id, record, reply)

    @property
    def abandoned_before(self) -> int:
        """How many sessions that the journal still holds were given up before this process began."""
        return self._sessions.abandoned

    def abandon(self, session_id: str) -> bool:
        """Give a session up whose release failed: it ends, and is never gradable.

        Returns:
            Whether the id is known.

        Raises:
            NotAllowed: Its release has not failed.
            JournalError: The decision cannot be kept now.
        """
        record = self._sessions.get(session_id)
        if record is None:
            return False
        record.driver.deliver(Abandoned(at=anyio.current_time()))
        return True

    async def runs_ended(self, *, timeout_s: float) -> list[str]:
        """Wait until no activation is under way.

        Returns:
            The ids of the sessions where one still is.
        """
        with anyio.move_on_after(timeout_s):
            while self._active():
                await self._sessions.moved()
        return self._active()

    def _active(self) -> list[str]:
        return [name for name, phase in self._sessions.phases.items() if phase is Phase.ACTIVE]


def _view(record: Record) -> dict[str, Any]:
    return view(
        record.driver.session,
        episode=encode(record.episode_id),
        sandbox_id=None if record.work is None else record.work.sandbox_id,
    )
