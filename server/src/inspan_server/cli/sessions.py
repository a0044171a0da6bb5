"""`inspan sessions`: through the running server, or, when it is down, from its journal."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import httpx
from attrs import define

from inspan_core.errors import InspanError, NotAllowed, UsageError
from inspan_core.events import Abandoned
from inspan_core.machine import fold, new_session, step
from inspan_core.session import Session
from inspan_runtime.journal import JournalError, StoredSession
from inspan_runtime.journal_sqlite import EVENTS_FILE, JournalInUse, SqliteJournal
from inspan_runtime.session_view import view
from inspan_server.agent.config import AgentConfig
from inspan_server.agent.config_reading import read_config
from inspan_server.agent.state_files import ADDRESS_FILE, admin_key
from inspan_server.cli.exit_codes import DONE, FAILED, INFRASTRUCTURE

CLOSE_STEPS = 6
"""A close takes five steps at most, each within its own bound; and one more for the way."""


class SessionsRefused(InspanError):
    """What was asked for cannot be done: says why."""


class Source(Protocol):
    """Where sessions are looked up."""

    def list(self) -> list[Mapping[str, Any]]:
        """All of them."""
        ...

    def show(self, session_id: str) -> Mapping[str, Any]:
        """One of them."""
        ...

    def close(self, session_id: str) -> Mapping[str, Any]:
        """Close one."""
        ...

    def abandon(self, session_id: str) -> Mapping[str, Any]:
        """Give one up."""
        ...


def run_sessions(
    action: str, config_path: str, *, session_id: str | None, abandons: bool, as_json: bool
) -> int:
    """Run one verb.

    Returns:
        0; 1 when it was refused; 3 when neither the server nor its journal can be had.

    Raises:
        UsageError: The configuration does not fit, or has no `state_dir`.
    """
    config = read_config(Path(config_path))
    if config.state_dir is None:
        raise UsageError(f"{config_path} has no state_dir: there is no journal to look into")
    try:
        source = find_source(config)
        if action == "list":
            sessions = source.list()
            print(json.dumps(sessions) if as_json else _table(sessions))
            return DONE
        assert session_id is not None  # the parser asks for it
        does = {"show": source.show, "close": source.abandon if abandons else source.close}[action]
        answer = does(session_id)
    except SessionsRefused as error:
        print(f"inspan sessions: {error}", file=sys.stderr)
        return FAILED
    except (JournalError, httpx.TransportError) as error:
        print(f"inspan sessions: {error}", file=sys.stderr)
        return INFRASTRUCTURE
    print(json.dumps(answer) if as_json else "\n".join(f"{key}: {value}" for key, value in answer.items()))
    return DONE


def find_source(config: AgentConfig) -> Source:
    """The running server, or the journal that no server uses.

    Raises:
        JournalError: There is no journal, or it cannot be read.
    """
    folder = Path(str(config.state_dir))
    try:
        is_there = (folder / EVENTS_FILE).exists()
    except OSError as error:
        raise JournalError(f"{folder} cannot be looked into: {error.strerror}") from error
    if not is_there:
        raise JournalError(f"{folder} holds no journal: no server with this configuration was ever started")
    try:
        journal = SqliteJournal(folder)
    except JournalInUse:
        return _Server(config, folder)
    return _Journal(journal, list(journal.load()))


@define
class _Server:
    config: AgentConfig
    folder: Path

    def list(self) -> list[Mapping[str, Any]]:
        return list(self._ask("GET", "")["sessions"])

    def show(self, session_id: str) -> Mapping[str, Any]:
        return self._ask("GET", f"/{quote(session_id, safe='')}")

    def close(self, session_id: str) -> Mapping[str, Any]:
        return self._ask("POST", f"/{quote(session_id, safe='')}/close")

    def abandon(self, session_id: str) -> Mapping[str, Any]:
        return self._ask("POST", f"/{quote(session_id, safe='')}/abandon")

    def _ask(self, method: str, path: str) -> Mapping[str, Any]:
        try:
            address = (self.folder / ADDRESS_FILE).read_text().strip()
        except OSError as error:
            raise JournalError(f"the server that uses {self.folder} has not said where it listens") from error
        timeout_s = CLOSE_STEPS * self.config.session_close_timeout_seconds
        answer = httpx.request(
            method,
            f"{address}/admin/sessions{path}",
            headers={"Authorization": f"Bearer {admin_key(self.config)}"},
            timeout=timeout_s,
            # The certificate is for the server's name, and this is loopback.
            verify=False,
            trust_env=False,
        )
        try:
            body: Any = answer.json()
        except ValueError:
            body = {"detail": answer.text[:500]}
        if answer.status_code != httpx.codes.OK:
            raise SessionsRefused(str(body.get("detail", body)))
        found: Mapping[str, Any] = body
        return found


@define
class _Journal:
    journal: SqliteJournal
    stored: list[StoredSession]

    def list(self) -> list[Mapping[str, Any]]:
        return [self._view(each, _folded(each)) for each in self.stored]

    def show(self, session_id: str) -> Mapping[str, Any]:
        each = self._one(session_id)
        return self._view(each, _folded(each))

    def close(self, session_id: str) -> Mapping[str, Any]:
        self._one(session_id)
        raise SessionsRefused("no server runs: start it, it goes on with what its sessions owe; then close")

    def abandon(self, session_id: str) -> Mapping[str, Any]:
        each = self._one(session_id)
        event = Abandoned(at=_last_at(each))
        try:
            session, _ = step(_folded(each), event)
        except NotAllowed as error:
            raise SessionsRefused(str(error)) from error
        self.journal.append(session_id, event)
        self.journal.close()
        return self._view(each, session)

    def _one(self, session_id: str) -> StoredSession:
        for each in self.stored:
            if each.name == session_id:
                return each
        raise SessionsRefused(f"no session {session_id!r} is kept here")

    @staticmethod
    def _view(stored: StoredSession, session: Session) -> Mapping[str, Any]:
        place = json.loads(stored.contents.get("place", b'{"episode_id": {}}'))
        sandbox = json.loads(stored.contents.get("sandbox", b"[null]"))
        return view(session, episode=place["episode_id"], sandbox_id=sandbox[0])


def _folded(stored: StoredSession) -> Session:
    return fold(new_session(stored.name), stored.events)


def _last_at(stored: StoredSession) -> float:
    return stored.events[-1].at


def _table(sessions: list[Mapping[str, Any]]) -> str:
    if not sessions:
        return "no sessions"
    width = max(len(each["agent_session_id"]) for each in sessions)
    return "\n".join(
        f"{each['agent_session_id']:{width}}  {each['phase']:12} {each['run']:16} sandbox {each['sandbox']}"
        f"{'' if each['sandbox_id'] is None else ' ' + each['sandbox_id']}"
        for each in sessions
    )
