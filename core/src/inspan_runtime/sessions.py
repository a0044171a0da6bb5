"""The sessions of a service by id: how one is made, found again after a restart, and forgotten."""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import anyio
from attrs import frozen

from inspan_core.codec import decode, encode
from inspan_core.effects import CloseBody, Effect
from inspan_core.errors import InspanError
from inspan_core.events import Abandoned, Event, Restarted
from inspan_core.machine import fold, new_session
from inspan_core.session import Phase, Session
from inspan_core.wire import EpisodeId, SeedRequest
from inspan_runtime.alarms import Alarm, Alarms
from inspan_runtime.contents import Record, closed_body
from inspan_runtime.driver import SessionDriver
from inspan_runtime.driver_needs import Follow, Observer
from inspan_runtime.harness_work import Activation, HarnessWork
from inspan_runtime.journal import Journal, JournalError, StoredSession
from inspan_runtime.packing import holds_secrets, pack_seed, to_bytes, unpack_seed
from inspan_runtime.perform import Performer
from inspan_runtime.recovery import Recovery
from inspan_runtime.restoring import restore_room, restore_work
from inspan_runtime.room import Room, Spawn
from inspan_runtime.service_settings import ServiceSettings
from inspan_runtime.slots import SlotPool

CLOSED_WORKDIR = "/"
DEFAULT_SESSION_DIR_ROOT = "/tmp/inspan"
RUN_CONTENTS = ("sandbox", "runtime", "grants", "activation", "artifacts", "parsed", "receipt", "processes")
"""What is kept for a run, and not needed once the close is answered."""

CUTTING = frozenset({Phase.CLOSING, Phase.CLOSE_FAILED})
"""Where a run without an answer was cut off."""

SCRUB_PAUSE_S, SCRUB_RETRY_S = 1.0, 60.0
"""What is overwritten waits for the disk: once for all sessions that are forgotten within this time."""

log = logging.getLogger(__name__)

WorkFactory = Callable[[SeedRequest], HarnessWork]


@frozen
class Place:
    """Where a session's files go inside, and whose they are."""

    session_dir: str
    workdir: str
    episode_id: EpisodeId

    def pack(self) -> bytes:
        """For the journal."""
        episode_id = encode(self.episode_id)
        return to_bytes({"session_dir": self.session_dir, "workdir": self.workdir, "episode_id": episode_id})


class SessionTable:
    """Holds every session of a service.

    Args:
        settings: See there.
        spawn: Starts tasks that outlive requests.
        make_work: Makes the harness's side of a session.
        journal: Where sessions are kept, or None.
        observers: Called with each transition.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        *,
        spawn: Spawn,
        make_work: WorkFactory,
        journal: Journal | None,
        observers: tuple[Observer, ...],
    ) -> None:
        self._settings = settings
        self._spawn = spawn
        self._make_work = make_work
        self._journal = journal
        self._observers = observers
        self._alarms = Alarms(spawn)
        self._scrubs: Alarm | None = None
        self.slots = SlotPool(settings.concurrency)
        self._records: dict[str, Record] = {}
        self._by_capture_key: dict[str, str] = {}
        self._fences: OrderedDict[str, None] = OrderedDict()
        self._moved: anyio.Event | None = None
        self.recovery = Recovery(settings.recovery_timeout_s)
        self.followers: list[Follow] = []
        self.abandoned = 0

    def __iter__(self) -> Iterator[Record]:
        return iter(list(self._records.values()))

    def get(self, session_id: str) -> Record | None:
        """The record of an id, or None."""
        record = self._records.get(session_id)
        if record is None or (record.driver.session.phase is Phase.NEW and not record.driver.is_working):
            # One at NEW is what is left of a request that could not be journalled: it never was.
            return None
        return record

    def holds(self, capture_key: str) -> bool:
        """Whether a session, open or retained, was seeded for that rollout."""
        return capture_key in self._by_capture_key

    @property
    def phases(self) -> Mapping[str, Phase]:
        """The phase of each session, by id."""
        return {name: record.driver.session.phase for name, record in self._records.items()}

    def knows_sandbox(self, sandbox_id: str) -> bool:
        """Whether a session's sandbox is called so."""
        return any(
            record.work is not None and record.work.sandbox_id == sandbox_id
            for record in self._records.values()
        )

    async def moved(self) -> None:
        """Wait for the next transition of any session."""
        if self._moved is None:
            self._moved = anyio.Event()
        await self._moved.wait()

    def add_seeded(self, seed: SeedRequest, work: HarnessWork) -> Record:
        """Make the record of a session that is about to be seeded."""
        name = seed.agent_session_id
        place = self._new_place(name, seed.episode_id, seed)
        self._keep(name, "seed", lambda: pack_seed(seed), secret=holds_secrets(seed))
        return self._add(new_session(name, self._settings.session), place, seed, work)

    def add_unseeded(self, session_id: str, episode_id: EpisodeId) -> Record:
        """Make the record of an id that is closed although it was never seeded."""
        place = self._new_place(session_id, episode_id, None)
        return self._add(new_session(session_id, self._settings.session), place, None, None)

    @contextmanager
    def taken_back(self, record: Record) -> Iterator[None]:
        """Around a request: what one that cannot be journalled was given is taken back, and it never was."""
        try:
            yield
        except JournalError:
            session = record.driver.session
            if not record.driver.is_working and self._records.get(session.name) is record:
                if session.phase is Phase.NEW:
                    self._drop(session.name)
                elif session.phase is Phase.READY:
                    record.room.keep("activation", None)
            raise

    def bind_activation(self, record: Record, token_capture: bool, request: Mapping[str, Any]) -> None:
        """Give a session that is about to become active the contents of its activation."""
        if record.work is not None and record.seed is not None:
            record.work.activation = self.activation(record.seed, token_capture, request)
            kept = {"request": request, "token_capture": token_capture}
            record.room.keep("activation", lambda: to_bytes(kept))

    def activation(self, seed: SeedRequest, token_capture: bool, request: Mapping[str, Any]) -> Activation:
        """The contents of an activation; its model URL carries the rollout's prefix."""
        key = seed.episode_id.capture_key
        segment = "/training-token-capture" if token_capture else ""
        return Activation(
            request=request,
            model_base_url=f"{self._settings.model_base_url.rstrip('/')}/ng-rollout/{key}{segment}/v1",
            model_name=self._settings.model_name,
            model_key=self._settings.model_key(key),
        )

    def read(self) -> None:
        """Read what the journal holds; nothing is ordered yet.

        Raises:
            JournalError: It cannot be read; names what cannot, and leaves it as it is.
        """
        if self._journal is None:
            return
        for stored in self._journal.load():
            try:
                session = fold(new_session(stored.name, self._settings.session), stored.events)
                if session.phase is not Phase.NEW:
                    self._restored(stored, session)
                    self.abandoned += any(isinstance(event, Abandoned) for event in stored.events)
                    continue
            except (InspanError, LookupError, ValueError, TypeError) as error:
                raise JournalError(
                    f"the journal holds a session {stored.name!r} that this inspan cannot go on with: {error}"
                ) from error
            self._journal.forget(stored.name)

    def resume(self) -> None:
        """Let each session that was read order what it still owes."""
        self.recovery.begin()
        for record in self:
            restarted = Restarted(at=anyio.current_time())
            # Before it is delivered: one that waits for the disk owes something, too. `follow` takes it out.
            self.recovery.add(record.driver.session.name)
            try:
                record.driver.deliver(restarted)
            except JournalError:
                self._spawn(partial(record.driver.post, restarted))

    def _restored(self, stored: StoredSession, session: Session) -> Record:
        contents, seed, work = stored.contents, None, None
        kept_seed = stored.secrets.get("seed", contents.get("seed"))
        if kept_seed is not None:
            seed = unpack_seed(kept_seed)
            work = self._make_work(seed)
            restore_work(work, contents, stored.secrets)
            if "activation" in contents:
                kept = json.loads(contents["activation"])
                work.activation = self.activation(seed, kept["token_capture"], kept["request"])
        elif session.phase is not Phase.FENCED:
            raise InspanError("its seed is not there")
        place = json.loads(contents["place"])
        episode_id = decode(EpisodeId, place["episode_id"])
        record = self._add(session, Place(place["session_dir"], place["workdir"], episode_id), seed, work)
        restore_room(record.room, contents)
        self._note_interruption(record)
        closed = contents.get("closed") or stored.secrets.get("closed")
        if closed is not None:
            record.closed_body = json.loads(closed)
        if session.phase is Phase.FENCED:
            self._fences[stored.name] = None
        return record

    def _new_place(self, session_id: str, episode_id: EpisodeId, seed: SeedRequest | None) -> Place:
        if seed is not None and seed.sandbox_access is not None:
            workdir = seed.sandbox_access.workdir
        else:
            workdir = CLOSED_WORKDIR if self._settings.owned is None else self._settings.owned.spec.workdir
        folder = (
            f"{self._settings.session_dir_root or DEFAULT_SESSION_DIR_ROOT}/{self._settings.new_folder()}"
        )
        place = Place(folder, workdir, episode_id)
        self._keep(session_id, "place", place.pack)
        return place

    def _add(
        self, session: Session, place: Place, seed: SeedRequest | None, work: HarnessWork | None
    ) -> Record:
        room = Room(
            session_dir=place.session_dir,
            workdir=place.workdir,
            keep=partial(self._keep, session.name),
            reconnected=partial(self.recovery.done, session.name),
        )
        performer = Performer(
            work if work is not None else _NoWork(),
            room,
            spawn=self._spawn,
            slots=self.slots,
            supervision=self._settings.supervision,
        )
        driver = SessionDriver(
            session,
            performer,
            spawn=self._spawn,
            journal=self._journal,
            prepare=self._keep_closed,
            follow=self._follow,
            observers=self._observers,
            alarms=self._alarms,
        )
        record = Record(
            seed=seed,
            driver=driver,
            work=work,
            room=room,
            episode_id=place.episode_id,
        )
        self._records[session.name] = record
        if seed is not None:
            self._by_capture_key[seed.episode_id.capture_key] = session.name
        return record

    def _keep(
        self, session_id: str, name: str, pack: Callable[[], bytes] | None, *, secret: bool = False
    ) -> None:
        if self._journal is not None:
            self._journal.keep(session_id, name, None if pack is None else pack(), secret=secret)

    def _follow(self, before: Session, event: Event, session: Session, effects: tuple[Effect, ...]) -> None:
        if self._moved is not None:
            self._moved.set()
            self._moved = None
        if session.phase is not before.phase or session.phase is Phase.NEW:
            self._keep_house(session)
        self.recovery.follow(session)
        for follow in self.followers:
            follow(before, event, session, effects)

    def _keep_house(self, session: Session) -> None:
        """Retain what a close leaves, drop what is back at NEW, and bound the fences of ids never seeded."""
        session_id, phase = session.name, session.phase
        record = self._records.get(session_id)
        if record is None or record.driver.session is not session:
            return  # It was dropped; who has its name now is another.
        if phase is Phase.NEW:
            # Also when nothing changed: a request that was refused must not leave a record.
            self._fences.pop(session_id, None)
            self._drop(session_id)
        elif phase is Phase.FENCED:
            self._fences[session_id] = None
            if len(self._fences) > self._settings.fence_limit:
                self._drop(self._fences.popitem(last=False)[0])
        elif phase is Phase.CLOSED:
            self._retain(session_id)
        elif phase is Phase.CLOSING:
            self._note_interruption(record)

    @staticmethod
    def _note_interruption(record: Record) -> None:
        """Tell the parser where a run was cut off: its end says nothing about the harness."""
        session = record.driver.session
        if record.work is not None and session.phase in CUTTING:
            bound, ended = session.activation_digest is not None, session.answer is not None
            record.work.interrupted = bound and not ended

    def _keep_closed(self, session: Session) -> None:
        """Have the answer of a close committed with it: what it was made of is gone after a restart."""
        answer = session.close_answer
        if session.phase is Phase.CLOSED and answer is not None and isinstance(answer.body, CloseBody):
            record = self._records[session.name]
            record.closed_body = closed_body(session.name, record, answer.body)
            # With the jar it is a secret like the cookies themselves.
            has_jar = record.closed_body["resources_cookies"] is not None
            body = record.closed_body
            self._keep(session.name, "closed", lambda: to_bytes(body), secret=has_jar)

    def _retain(self, session_id: str) -> None:
        record = self._records[session_id]
        if self._journal is not None:
            for name in RUN_CONTENTS:
                self._journal.keep(session_id, name, None)
        if record.work is not None and not self._settings.retains_artifacts:
            record.work.forget_run()

    def _drop(self, session_id: str) -> None:
        record = self._records.pop(session_id, None)
        if record is None:
            return
        record.driver.stop_timer()
        record.driver.retire(JournalError(f"session {session_id!r} was forgotten at this moment: ask again"))
        if self._journal is not None:
            self._journal.forget(session_id)
            if self._scrubs is None:
                self._scrubs = self._alarms.set(SCRUB_PAUSE_S, self._scrub)
        if record.seed is not None:
            key = record.seed.episode_id.capture_key
            if self._by_capture_key.get(key) == session_id:
                del self._by_capture_key[key]

    def _scrub(self) -> None:
        self._scrubs = None
        if self._journal is not None:
            try:
                self._journal.scrub()
            except JournalError as error:
                log.warning("what removed secrets left is not overwritten yet: %s", error)
                self._scrubs = self._alarms.set(SCRUB_RETRY_S, self._scrub)


class _NoWork:
    """Stands in for the work of an id that was never seeded: the machine orders nothing there."""

    def __getattr__(self, name: str) -> Any:
        raise InspanError(f"{name} was ordered for a session that was never seeded")
