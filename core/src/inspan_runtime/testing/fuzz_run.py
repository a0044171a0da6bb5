"""Plays one scenario from the first request to the last trace, and says which rules were broken."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
from attrs import define, evolve, frozen

from inspan_core.errors import PluginError
from inspan_core.harness import ParsedActivation, ParseInput
from inspan_core.plugins import load_plugins
from inspan_core.relay import Harness
from inspan_core.sandbox import SandboxSpec
from inspan_core.session import Settings
from inspan_core.wire import DirectSandboxConnection, SandboxAccess
from inspan_runtime.harness_work import OwnedSandbox, Parser
from inspan_runtime.install_cache import RuntimeCache
from inspan_runtime.perform import Supervision
from inspan_runtime.service import AgentService
from inspan_runtime.service_settings import ServiceSettings
from inspan_runtime.testing.fake_commands import Answerer
from inspan_runtime.testing.fake_provider import fake_factory
from inspan_runtime.testing.fake_sandbox import KIND
from inspan_runtime.testing.fake_supervisor import Program
from inspan_runtime.testing.fake_world import Broken, FakeWorld
from inspan_runtime.testing.fuzz_clients import MainClient, Subject, Visitor
from inspan_runtime.testing.fuzz_witness import RUN_TIMEOUT_S, Lookout, Witness
from inspan_runtime.testing.memory_journal import MemoryJournal
from inspan_runtime.testing.scenarios import Ask, Scenario
from inspan_runtime.testing.scheduler import SteppedLoop, Stuck
from inspan_runtime.testing.schedules import Scheduler, doing

NOT_WELL = "a run that could end well did not"
WORKDIR = "/work"
FOLDER_ROOT = "/tmp/inspan"
PATIENCE_S = 6 * 3600.0
LAST_TRIES = 8
LAST_PAUSE_S = 30.0
SETTINGS = Settings(
    create_timeout_s=60.0,
    connect_timeout_s=30.0,
    install_timeout_s=60.0,
    stage_timeout_s=60.0,
    run_margin_s=30.0,
    parse_timeout_s=30.0,
    close_step_timeout_s=20.0,
    retry_window_s=300.0,
)


@frozen(kw_only=True)
class Trial:
    """What is fuzzed.

    Attributes:
        harness: The harness, with `lookout` among its plugins.
        lookout: Sees the harness's collections.
        program: A model of the program that it launches.
        request: The Responses request that activates it.
        options: The harness's options.
        answer: Answers commands of its own that it runs in the sandbox.
    """

    harness: Harness
    lookout: Lookout
    program: Program
    request: Mapping[str, Any]
    options: Mapping[str, Any]
    answer: Answerer | None = None


@define
class Verdict:
    """What came of a scenario.

    Attributes:
        broken: The rules that were broken, in the order in which they were.
        log: What happened: seconds from the start, and a line.
        activated: The status that the main client's activation was answered with, or None.
        records: How many journal records were made.
        calls: How many calls into the world.
        decisions: How many decisions of the scheduler.
    """

    broken: list[Broken]
    log: list[tuple[float, str]]
    activated: int | None
    records: int
    calls: int
    decisions: int


def trial_of(
    plugin: object,
    program: Program,
    *,
    request: Mapping[str, Any],
    options: Mapping[str, Any] | None = None,
    answer: Answerer | None = None,
) -> Trial:
    """Make a harness plugin (a module or an object with hooks) ready to be fuzzed.

    Raises:
        PluginError: It is no harness plugin, or a broken one.
    """
    lookout = Lookout()
    plugins = load_plugins([plugin, lookout], entry_points=False)
    names = plugins.harness_names()
    if len(names) != 1:
        problems = "; ".join(map(str, plugins.problems)) or "it declares none"
        raise PluginError(f"expected a plugin with one harness, found {len(names)}: {problems}")
    harness = plugins.harness(names[0])
    return Trial(
        harness=harness,
        lookout=lookout,
        program=program,
        request=request,
        options={**harness.spec.options, **(options or {})},
        answer=answer,
    )


def play(scenario: Scenario, trial: Trial) -> Verdict:
    """Play a scenario. It always comes to an end, and always to the same."""
    return _Play(scenario, trial).play()


async def parse_inline(parse: Parser, run: ParseInput) -> ParsedActivation:
    """Parse in the event loop, where a schedule can put others before it."""
    await anyio.lowlevel.checkpoint()
    return parse(run)


class _Play:
    def __init__(self, scenario: Scenario, trial: Trial) -> None:
        self.scenario = scenario
        self.folders = itertools.count(1)
        world = self.world = FakeWorld(
            faults=scenario.faults,
            plan=scenario.harness,
            program=trial.program,
            latency_s=scenario.latency_s,
            answer=trial.answer,
        )
        self.witness = Witness(world)
        self.choose = Scheduler(scenario.schedule, world.say)
        self.journal = MemoryJournal(self._recorded)
        self.loop = SteppedLoop(world.clock)
        self.was_killed = False
        self.options = trial.options
        self.harness, trial.lookout.witness = trial.harness, self.witness
        names = ["main", "neighbour"][: 1 + scenario.neighbour]
        self.clients = [
            MainClient(
                f"client of {name}",
                self._subject(name, trial),
                world,
                self.witness,
                thinks_s=scenario.thinks_s,
            )
            for name in names
        ]
        main = self.clients[0].subject
        self.visitors = [
            Visitor(f"visitor {number}", main, world, self.witness, visit=visit)
            for number, visit in enumerate(scenario.visits, 1)
        ]
        self.last_tries = dict.fromkeys(names, 0)

    def _subject(self, name: str, trial: Trial) -> Subject:
        access = None
        if not self.scenario.owned:
            machine = self.world.supply(f"supplied-{name}", SandboxSpec(workdir=WORKDIR, ttl_s=None))
            descriptor = {"provider": KIND, "sandbox_id": machine.sandbox_id}
            access = SandboxAccess(
                connection=DirectSandboxConnection(
                    kind="direct", provider_config_ref=KIND, descriptor=descriptor
                ),
                workdir=WORKDIR,
            )
        return Subject(name, access, trial.request)

    def play(self) -> Verdict:
        start_s, world = self.world.clock.now, self.world
        with _troubles_of_the_server(self.world):
            try:
                while self._serve_until_killed():
                    pass
                self._check_the_end()
            except Stuck as stuck:
                waiting = [f"{c.who} waits for {c.asking.value}" for c in self._everybody() if c.asking]
                world.breaks("somebody waits for ever", f"{stuck}; {'; '.join(waiting)}")
                self.loop.drain()
        activated = self.clients[0].activated
        return Verdict(
            broken=world.broken,
            log=[(at - start_s, line) for at, line in world.log],
            activated=None if activated is None else activated.status,
            records=self.journal.records,
            calls=world.calls,
            decisions=self.choose.decisions,
        )

    def _everybody(self) -> list[MainClient | Visitor]:
        return [*self.clients, *self.visitors]

    def _serve_until_killed(self) -> bool:
        """Run one server; returns whether another has to follow."""
        self.was_killed = False
        self.world.forget_waiters()
        for client in self.clients:
            client.asked.clear()
        self.loop = SteppedLoop(self.world.clock, self.choose, until_s=self.world.clock.now + PATIENCE_S)
        self.loop.run_until_complete(self._serve())
        if self.was_killed:
            self.loop.drain()
        self.loop.close()
        return self.was_killed

    def _recorded(self, session: str, kind: str, what: Any) -> None:
        self.witness.recorded(session, kind, what)
        self.witness.check_sandboxes()
        if self.journal.records in self.scenario.kills:
            self.journal = self.journal.successor()
            self.world.kill_server()
            self.witness.killed()
            self.was_killed = True
            self.loop.stop()

    # --- inside the loop ---------------------------------------------------------------------------

    async def _serve(self) -> None:
        service = self._service()
        async with service:
            async with anyio.create_task_group() as group:
                for visitor in self.visitors:
                    group.start_soon(visitor.live, service, self.clients[0])
                async with anyio.create_task_group() as mains:
                    for client in self.clients:
                        mains.start_soon(client.live, service)
                # Whoever still waits for its turn need not come any more; who asked is still to be answered.
                self.world.close_doors()
                for ask in Ask:
                    self.clients[0].begun(ask).set()
            self._check_the_activation()
            self.world.is_calm = True
            for client in self.clients:
                await self._close_at_last(client, service)
            await anyio.sleep(SETTINGS.retry_window_s * 2)
            if service.phases:
                self.world.breaks("a session was never forgotten", str(dict(service.phases)))
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                self.world.breaks("something is left", f"a task: {doing(task)}")

    def _service(self) -> AgentService:
        owned = OwnedSandbox(provider=KIND, spec=SandboxSpec(workdir=WORKDIR, ttl_s=None))
        return AgentService(
            self.harness,
            {KIND: fake_factory(self.world)},
            ServiceSettings(
                model_base_url="http://127.0.0.1:1",
                model_name="fuzz",
                run_timeout_s=RUN_TIMEOUT_S,
                concurrency=1,
                session=evolve(SETTINGS, lease_s=self.scenario.lease_s),
                supervision=Supervision(grace_s=2.0, cleanup_timeout_s=6.0),
                session_dir_root=FOLDER_ROOT,
                owned=owned if self.scenario.owned else None,
                options=self.options,
                # Not by chance: pauses are spread by it, and a scenario always ends in the same way.
                new_folder=lambda: f"{next(self.folders):032x}",
            ),
            cache=RuntimeCache(Path("/nonexistent/inspan-fuzz"), client_env={}),
            journal=self.journal,
            run_parser=parse_inline,
        )

    async def _close_at_last(self, client: MainClient, service: AgentService) -> None:
        """A close must succeed: at once where evidence can be had, else when the sandbox is gone."""
        name = client.subject.name
        while self.last_tries[name] < LAST_TRIES:
            answer = await client.ask(service, Ask.CLOSE)
            if answer.status < 500:
                await self._close_again(client, service, answer.status, answer.body)
                return
            self.last_tries[name] += 1
            if self.last_tries[name] == LAST_TRIES // 2:
                self._end_sandbox(name)
            await anyio.sleep(LAST_PAUSE_S)
        self.world.breaks("a session whose sandbox is gone cannot be closed", name)

    def _end_sandbox(self, name: str) -> None:
        folder = self.witness.of(name).folder
        machine = self.witness.machine_of(folder)
        if machine is not None:
            supervisors = [each for each in machine.supervisors if each.folder == folder]
            if not any(each.claimed and not each.lives and each.exit_code is None for each in supervisors):
                self.world.breaks("a session that could be closed is not", name)
        for each in self.world.machines.values():
            if each is machine or (each.key or "").startswith(f"{name}.") or each.sandbox_id.endswith(name):
                each.end()
        self.world.say(f"the sandbox of {name} is gone")

    async def _close_again(self, client: MainClient, service: AgentService, status: int, body: Any) -> None:
        again = await client.ask(service, Ask.CLOSE)
        if (again.status, again.body) != (status, body):
            self.world.breaks("a repeated close was answered differently", client.subject.name)

    # --- at the end --------------------------------------------------------------------------------

    def _check_the_activation(self) -> None:
        for client in self.clients:
            name, answer = client.subject.name, client.activated
            is_main = client is self.clients[0]
            must = self.witness.must_end_well(name, self.scenario, is_visited=is_main)
            if must and (answer is None or answer.status != 200):
                told = "its seed failed" if answer is None else f"it was answered {answer.status}"
                self.world.breaks(NOT_WELL, f"{name}: {told}")

    def _check_the_end(self) -> None:
        for line in self.witness.leftovers(FOLDER_ROOT, self.scenario):
            self.world.breaks("something is left", line)
        if self.journal.names:
            self.world.breaks("something is left", f"in the journal: {', '.join(self.journal.names)}")


@contextmanager
def _troubles_of_the_server(world: FakeWorld) -> Iterator[None]:
    """A task of the server that raises is a fault; the service only logs it."""

    class Catcher(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            error = record.exc_info[1] if record.exc_info else None
            if not isinstance(error, Stuck):
                world.breaks("a task of the server failed", f"{type(error).__name__}: {error}")

    logger = logging.getLogger("inspan_runtime.service")
    handler, propagates = Catcher(), logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagates
