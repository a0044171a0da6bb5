"""Who watches a fuzzed server from outside: its journal's records, its collections, its answers.

A witness reads no state of the server. It knows what the world knows, what was recorded, and what clients
were told, and compares.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Awaitable
from typing import Any

from attrs import define, field

from inspan_core.answers import Collected, Staged
from inspan_core.harness import CollectContext
from inspan_core.hookspecs import hookimpl
from inspan_runtime.service_settings import Answer
from inspan_runtime.testing.fake_machine import FakeMachine
from inspan_runtime.testing.fake_world import Call, FakeWorld
from inspan_runtime.testing.faults import CallKind, FaultKind
from inspan_runtime.testing.scenarios import Ask, Scenario
from inspan_supervisor import PROCESSES_FILE, RECEIPT_FILE, RETIRED_SUFFIX

SMALL_DELAY_S = 1.0
CUT_OFF = ("is being closed", "the lease of its sandbox is over")
RUN_TIMEOUT_S = 60.0
_RELEASES = (CallKind.REMOVE, CallKind.DISCONNECT, CallKind.STOP, CallKind.CLOSE_CLIENT)
_BROKEN = (FaultKind.ERROR_BEFORE, FaultKind.ERROR_AFTER)


@define
class Seen:
    """What was seen of one session.

    Attributes:
        folder: Its folder inside the sandbox, from the journal.
        staged: Whether its staging was recorded, so that its launch was ordered.
        collections: How many collections were recorded.
        collecting: How many are under way.
        released: Whether a close was answered 200.
        answers: What clients were told, by what they had asked for.
        excuses: Why its activation need not end well.
    """

    folder: str = ""
    staged: bool = False
    collections: int = 0
    collecting: int = 0
    released: bool = False
    answers: dict[Ask, list[Answer]] = field(factory=dict)
    excuses: list[str] = field(factory=list)


class Lookout:
    """A plugin that shows the harness's collections to whoever is the witness.

    Attributes:
        witness: The witness of the world that is played.
    """

    witness: Witness

    @hookimpl(wrapper=True)
    def inspan_collect(self, context: CollectContext) -> Any:
        """Show a collection."""
        collecting = yield
        return self.witness.collected(context.session_dir, collecting)


class Witness:
    """Watches all sessions of a world.

    Args:
        world: The world.
    """

    def __init__(self, world: FakeWorld) -> None:
        self.world = world
        self.sessions: dict[str, Seen] = {}
        self._launched: Counter[str] = Counter()

    def of(self, session: str) -> Seen:
        """What was seen of a session."""
        return self.sessions.setdefault(session, Seen())

    # --- the journal -------------------------------------------------------------------------------

    def recorded(self, session: str, kind: str, what: Any) -> None:
        """The server made a record."""
        seen = self.of(session)
        if kind == "event":
            self.world.say(f"[{session}] {_event(what)}")
            if isinstance(what, Staged):
                seen.staged = True
            if isinstance(what, Collected):
                seen.collections += 1
                if seen.collections > 1:
                    self.world.breaks("a run was collected twice", session)
        elif kind == "content" and what[0] == "place" and what[1] is not None:
            folder = json.loads(what[1])["session_dir"]
            if folder != seen.folder:
                seen.folder, seen.staged, seen.collections = folder, False, 0

    def killed(self) -> None:
        """The server died: a launch that was ordered and not claimed is lost, for it is never repeated."""
        for name, seen in self.sessions.items():
            seen.collecting = 0
            if seen.staged and not self.claimed(seen.folder):
                seen.excuses.append(f"the server died before the launch of {name} was claimed")

    # --- the sandboxes -----------------------------------------------------------------------------

    def machine_of(self, folder: str) -> FakeMachine | None:
        """The sandbox in which a session's folder is, if any."""
        for machine in self.world.machines.values():
            if folder and machine.is_alive and machine.exists(folder):
                return machine
        return None

    def claimed(self, folder: str) -> bool:
        """Whether a launch took effect."""
        return any(
            supervisor.claimed
            for machine in self.world.machines.values()
            for supervisor in machine.supervisors
            if supervisor.folder == folder
        )

    async def collected(self, folder: str, collecting: Awaitable[None]) -> None:
        """Watch a collection from its beginning to its end."""
        name, seen = next(item for item in self.sessions.items() if item[1].folder == folder)
        self.world.say(f"[{name}] collecting begins")
        self._check_collection(name, seen)
        seen.collecting += 1
        generation = self.world.generation
        try:
            await collecting
            if generation == self.world.generation:
                self._check_receipt(name, seen)
        finally:
            if generation == self.world.generation:
                seen.collecting -= 1

    def _check_collection(self, name: str, seen: Seen) -> None:
        if seen.collections:
            self.world.breaks("a collection began after one was recorded", name)
        if seen.collecting:
            self.world.breaks("two collections at the same time", name)
        if seen.released:
            self.world.breaks("a collection began after the release", name)
        self._check_receipt(name, seen)

    def _check_receipt(self, name: str, seen: Seen) -> None:
        machine = self.machine_of(seen.folder)
        if machine is None:
            return  # It went away meanwhile; there is nothing to collect from.
        receipt = machine.files.get(f"{seen.folder}/{RECEIPT_FILE}")
        if receipt is None or not json.loads(receipt.data)["cleanup_confirmed"]:
            self.world.breaks("a collection without a confirmed receipt", name)

    # --- the answers -------------------------------------------------------------------------------

    def answered(self, session: str, ask: Ask, answer: Answer) -> None:
        """A client was told something."""
        seen = self.of(session)
        seen.answers.setdefault(ask, []).append(answer)
        if ask in (Ask.ACTIVATE, Ask.OTHER_ACTIVATE):
            self._check_activation(session, seen, ask, answer)
        elif ask in (Ask.SEED, Ask.OTHER_SEED) and answer.status == 200:
            other = Ask.OTHER_SEED if ask is Ask.SEED else Ask.SEED
            if any(each.status == 200 for each in seen.answers.get(other, [])) and not seen.released:
                self.world.breaks("two different seeds were accepted", session)
        elif ask is Ask.CLOSE and answer.status == 200:
            self._check_release(session, seen)
            seen.released = True

    def _check_activation(self, session: str, seen: Seen, ask: Ask, answer: Answer) -> None:
        if _is_refusal(answer):
            return
        other = Ask.OTHER_ACTIVATE if ask is Ask.ACTIVATE else Ask.ACTIVATE
        if not all(_is_refusal(each) for each in seen.answers.get(other, [])):
            self.world.breaks("two different activations were accepted", session)
        told = [each for each in seen.answers[ask] if not _is_refusal(each)]
        if any(each != told[0] for each in told):
            self.world.breaks(
                "identical activations were answered differently",
                f"{session}: {_short(told[0])}, {_short(answer)}",
            )
        if answer.status == 200 and not seen.collections:
            self.world.breaks("an activation was answered 200 without a collection", session)

    def _check_release(self, session: str, seen: Seen) -> None:
        if seen.collecting:
            self.world.breaks("a close was answered while artifacts were collected", session)
        alive = [
            each
            for each in self.world.machines.values()
            if each.key is not None and each.key.startswith(f"{session}.") and each.is_alive
        ]
        if alive:
            self.world.breaks(
                "a close was answered while its sandbox lives", f"{session}: {alive[0].sandbox_id}"
            )
        machine = self.machine_of(seen.folder)
        if machine is not None and machine.key is None:
            self.world.breaks(
                "a close was answered while session files lie there", f"{session}: {seen.folder}"
            )

    def check_sandboxes(self) -> None:
        """At most one sandbox of a session lives."""
        lives = Counter(
            machine.key.partition(".")[0]
            for machine in self.world.machines.values()
            if machine.is_alive and machine.key is not None
        )
        for session, count in lives.items():
            if count > 1:
                self.world.breaks("two sandboxes of a session live", session)

    # --- what must be, not only what must not --------------------------------------------------------

    def must_end_well(self, session: str, scenario: Scenario, *, is_visited: bool) -> bool:
        """Whether nothing happened that may keep a session's activation from its 200."""
        seen, harness = self.of(session), scenario.harness
        # What a plugin makes of a bad exit code or of a deadline is its own affair.
        ends_well = harness.return_code == 0 and harness.runs_s < RUN_TIMEOUT_S
        if seen.excuses or not ends_well or not harness.is_proven or harness.dies_after_s is not None:
            return False
        spoils = (Ask.CLOSE, Ask.OTHER_ACTIVATE, Ask.OTHER_SEED)
        if is_visited and any(visit.ask in spoils for visit in scenario.visits):
            return False
        if scenario.owned and scenario.lease_s is not None:
            return False
        return all(
            (_is_survivable(call.kind, call.about, call.fault) or self._is_reconnect(call, scenario))
            and not (call.kind is CallKind.LAUNCH and harness.loads_s > SMALL_DELAY_S)
            # A set-up that a restart cut off is released first; when that fails, it is kept for close only.
            and not (call.kind in _RELEASES and scenario.kills)
            for call in self.world.hits
        )

    def _is_reconnect(self, call: Call, scenario: Scenario) -> bool:
        """Whether a restarted server failed to reach the sandbox, which it tries again."""
        fault = call.fault
        return (
            scenario.owned
            and call.kind is CallKind.CONNECT
            and fault is not None
            and fault.effective is FaultKind.ERROR_BEFORE
            and fault.delay_s <= SMALL_DELAY_S
        )

    def _unclosable(self, scenario: Scenario) -> int:
        """How many clients may stay open: one that reached nothing is closed once, which may fail."""
        reaching = (CallKind.CREATE, CallKind.CONNECT)
        cuts_off = (Ask.CLOSE, Ask.OTHER_SEED)  # After another seed the main client closes at once.
        # A sandbox that a fault took away is not reached by the next seed either.
        struck = any(
            call.kind in reaching or (call.fault is not None and call.fault.effective is FaultKind.GONE)
            for call in self.world.hits
        )
        if not (struck or scenario.kills or any(visit.ask in cuts_off for visit in scenario.visits)):
            return 0
        return sum(call.kind is CallKind.CLOSE_CLIENT for call in self.world.hits)

    def leftovers(self, folder_root: str, scenario: Scenario) -> list[str]:
        """What is left in the world when every session is over and forgotten."""
        world, left = self.world, []
        if len(world.clients) > self._unclosable(scenario):
            left.append(f"{len(world.clients)} provider clients are open")
        left += [f"{len(world.connections)} connections are open"] if world.connections else []
        for machine in world.machines.values():
            if not machine.is_alive:
                continue
            if machine.key is not None:
                left.append(f"sandbox {machine.sandbox_id} of {machine.key} lives")
            files = [
                name
                for name in machine.files
                if name.startswith(folder_root) and not name.endswith(RETIRED_SUFFIX)
            ]
            left += [f"{name} lies in {machine.sandbox_id}" for name in files]
            left += [
                f"a harness of {each.folder} runs"
                for each in machine.supervisors
                if each.harness_lives and each.plan.is_proven
            ]
        return left


def _is_survivable(kind: CallKind, about: str, fault: Any) -> bool:
    how = fault.effective
    if kind in _RELEASES or (how is FaultKind.SLOW and fault.delay_s <= SMALL_DELAY_S):
        return True
    if kind is CallKind.LAUNCH:
        # A launch whose exec broke is waited for a moment before it is fenced.
        later = how is FaultKind.ERROR_THEN_EFFECT and fault.delay_s == 0.0
        return later or how in (FaultKind.ERROR_AFTER, FaultKind.LOST_ANSWER)
    if kind is CallKind.DOWNLOAD and not about.endswith((RECEIPT_FILE, PROCESSES_FILE)):
        return False
    if kind in (CallKind.LOOK, CallKind.DOWNLOAD):
        return how in _BROKEN and fault.delay_s <= SMALL_DELAY_S
    return False


def _is_refusal(answer: Answer) -> bool:
    """Whether it says nothing of the run: refused, or cut off by a close or by the end of a lease."""
    return answer.status in (409, 422) or str(answer.body.get("detail", "")).endswith(CUT_OFF)


def _short(answer: Answer) -> str:
    return f"{answer.status} {json.dumps(answer.body)[:100]}"


def _event(event: Any) -> str:
    detail = getattr(event, "detail", None) or getattr(event, "error", None)
    return type(event).__name__ + (f": {detail}" if detail else "")
