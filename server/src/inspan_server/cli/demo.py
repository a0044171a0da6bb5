"""`inspan demo`: one whole episode on this machine, shown as it goes.

A sandbox with a small git repository whose test fails; a real harness in it that talks to a scripted model;
its proven end; and only then the verification.
"""

from __future__ import annotations

import logging
import secrets
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import anyio
from attrs import define, evolve, field, frozen

from inspan_core.errors import UsageError
from inspan_core.harness import HarnessSpec
from inspan_core.hookspecs import hookimpl
from inspan_core.plugins import Plugins, load_plugins
from inspan_core.sandbox import Sandbox
from inspan_core.wire import EpisodeId
from inspan_runtime.providers import builtin
from inspan_runtime.service import SessionEvidence
from inspan_server.cli import report
from inspan_server.cli.demo_result import put_together
from inspan_server.cli.demo_servers import (
    MODEL,
    DemoPlan,
    DemoServers,
    WatchedProvider,
    demo_servers,
    run_request,
)
from inspan_server.cli.exit_codes import DONE, FAILED, INFRASTRUCTURE, interrupted
from inspan_server.cli.run_folder import RunFolder
from inspan_server.cli.screen import Screen
from inspan_server.cli.timeline import Timeline
from inspan_server.environment.calls import new_client
from inspan_server.environment.demo_task import DEMO_TASK, demo_script
from inspan_server.environment.task import Task, load_task
from inspan_server.model.capture import Capture
from inspan_server.model.script import Script, load_script, parse_script
from inspan_server.model.upstream import Upstream

DIFF_LIMIT_BYTES = 1024 * 1024
REPOSITORY_LIMIT_BYTES = 64 * 1024 * 1024
LOOK_TIMEOUT_S = 20.0
PATIENCE_S = 5.0


@frozen(kw_only=True)
class DemoOptions:
    """What the command line says.

    Attributes:
        keep: Also keep the repository as the agent left it.
        run_dir: Where the run's records go; None: a new folder below ``./runs``.
        task: A task's folder; None: the built-in task.
        script: A script's file; None: the one that solves the built-in task.
        upstream: A real model's server in place of a script.
        model: The model to ask for.
    """

    harness: str = "pi"
    sandbox: str = "bubblewrap"
    as_json: bool = False
    keep: bool = False
    run_dir: str | None = None
    task: str | None = None
    script: str | None = None
    upstream: Upstream | None = None
    model: str = MODEL


@define
class _Observer:
    """A plugin that shows the Agent Server's transitions to the demonstration."""

    timeline: Timeline
    on_session: Callable[[str], None] = lambda session_id: None

    @hookimpl
    def inspan_observe(self, transition: Mapping[str, Any]) -> None:
        self.timeline.on_transition(transition)
        self.on_session(transition["session"])


def run_demo(options: DemoOptions) -> int:
    """Run the demonstration.

    Returns:
        0 when the episode was healthy and earned the reward; 1 when it did not; 3 when no harness could be
        started; 130 or 143 after Ctrl-C or SIGTERM.

    Raises:
        PluginError: An unknown harness or sandbox provider.
        ProviderUnavailable: The host lacks what the sandbox provider needs.
        UsageError: The run folder, the task or the script cannot be used, or there is a script beside a
            real model.
    """
    screen = Screen(options.as_json)
    timeline = Timeline(time.monotonic, screen.on_entry)
    screen.timeline = timeline
    observer = _Observer(timeline)
    plugins = load_plugins([builtin, observer])
    harness = plugins.harness(options.harness).spec
    provider = WatchedProvider(plugins.provider_factory(options.sandbox)({}))
    task = DEMO_TASK if options.task is None else load_task(options.task)
    script = _script(options, harness)
    folder = RunFolder.make(options.run_dir)
    demo = _Demo(
        options=options,
        harness=harness,
        plugins=plugins,
        provider=provider,
        task=task,
        script=script,
        folder=folder,
        screen=screen,
        timeline=timeline,
    )
    observer.on_session = demo.remember
    with _logging_to(folder):
        return anyio.run(demo.run)


@define(kw_only=True)
class _Demo:
    options: DemoOptions
    harness: HarnessSpec
    plugins: Plugins
    provider: WatchedProvider
    task: Task
    script: Script | None
    folder: RunFolder
    screen: Screen
    timeline: Timeline
    episode_id: EpisodeId = field(factory=lambda: episode_id_of(secrets.token_hex(4)))
    capture: Capture = field(init=False)
    servers: DemoServers | None = field(default=None, init=False)
    evidence: SessionEvidence | None = field(default=None, init=False)
    answer: Mapping[str, Any] = field(factory=dict, init=False)
    signal_number: int | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self.capture = Capture(observe=self.screen.on_call)

    async def run(self) -> int:
        """Everything that a signal must not leave behind happens under the signal receiver."""
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            self.screen.say(
                f"inspan demo: {self.harness.name} {self.harness.version}, {self.options.sandbox} sandbox, "
                f"task {self.task.task_id.task_id}"
            )
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._heed, signals, tasks.cancel_scope)
                tasks.start_soon(self._show_patience)
                with tempfile.TemporaryDirectory(prefix="inspan-demo-") as scratch:
                    await self._episode(scratch)
                tasks.cancel_scope.cancel()
            return self._finish()

    def remember(self, session_id: str) -> None:
        """Keep the session's evidence: the server lets go of it when the close is answered."""
        now = None if self.servers is None else self.servers.service.evidence(session_id)
        before = self.evidence
        if now is not None and before is not None:
            now = evolve(
                now,
                receipt=now.receipt or before.receipt,
                processes=now.processes or before.processes,
                artifacts=now.artifacts if now.artifacts.files else before.artifacts,
            )
        self.evidence = now or before

    async def _heed(self, signals: AsyncIterator[signal.Signals], scope: anyio.CancelScope) -> None:
        async for number in signals:
            self.signal_number = int(number)
            self.screen.warn(f"{signal.Signals(number).name}: closing the session, then the sandbox")
            scope.cancel()

    async def _show_patience(self) -> None:
        """Say what takes long: a first installation downloads for half a minute."""
        while True:
            await anyio.sleep(PATIENCE_S)
            under_way = self.timeline.under_way
            if under_way is not None and under_way[1] >= PATIENCE_S:
                self.screen.say(report.waiting_line(self.timeline.elapsed_ms, *under_way))

    async def _episode(self, scratch: str) -> None:
        plan = DemoPlan(
            harness=self.options.harness,
            sandbox=self.options.sandbox,
            plugins=self.plugins,
            provider=self.provider,
            episode_id=self.episode_id,
            task=self.task,
            script=self.script,
            upstream=self.options.upstream,
            model=self.options.model,
            scratch=scratch,
            timeline=self.timeline,
            capture=self.capture,
            before_stop=self._look,
        )
        self.timeline.begin("start the servers")
        async with demo_servers(plan) as self.servers, new_client() as client:
            self.timeline.end()
            url = f"{self.servers.environment_url}/run"
            answered = await client.post(url, json=run_request(self.episode_id, self.task))
            if answered.status_code == 200:
                self.answer = answered.json()
            else:
                self.answer = _failed(
                    f"the environment answered {answered.status_code}: {answered.text[:500]}"
                )
            self.timeline.begin("stop the servers")
        self.timeline.end()

    async def _look(self, sandbox: Sandbox, workdir: str) -> None:
        """Keep what the agent changed, before the sandbox is gone."""
        diff = await sandbox.exec(
            ("git", "diff", "HEAD"),
            timeout_s=LOOK_TIMEOUT_S,
            cwd=workdir,
            output_limit_bytes=DIFF_LIMIT_BYTES,
        )
        self.folder.write("changes.diff", diff.stdout)
        if self.options.keep:
            tar = await sandbox.exec(
                ("tar", "-cf", "-", "."),
                timeout_s=LOOK_TIMEOUT_S,
                cwd=workdir,
                output_limit_bytes=REPOSITORY_LIMIT_BYTES,
            )
            if not tar.stdout_truncated:
                self.folder.write("repository.tar", tar.stdout)

    def _finish(self) -> int:
        """Write the records, show the result, and say how it went."""
        answer = self.answer or _failed("interrupted")
        evidence = self.evidence
        result = put_together(
            harness=self.harness,
            task=self.task,
            provider=self.options.sandbox,
            sandbox=self.provider.made,
            answer=answer,
            evidence=evidence,
            capture=self.capture,
            rollout_key=self.episode_id.capture_key,
            timeline=self.timeline,
        )
        value = {**result.value, "run_dir": str(self.folder.path)}
        self.folder.write_rollout(value)
        self.capture.export_jsonl(self.folder.path / "model_calls.jsonl")
        if evidence is not None:
            self.folder.write_artifacts(evidence.artifacts)
        self.screen.finish(value)
        if self.signal_number is not None:
            return interrupted(self.signal_number)
        if result.failed_at_seed:
            self.screen.warn(f"nothing was run: {value['failure']['failure_reason']}")
            return INFRASTRUCTURE
        return DONE if result.is_healthy and result.reward == 1 else FAILED


def _script(options: DemoOptions, harness: HarnessSpec) -> Script | None:
    if options.upstream is not None:
        if options.script is not None:
            raise UsageError("the model is either a script or a server: give --script or --model-url")
        return None
    if options.script is not None:
        return load_script(options.script)
    return parse_script(demo_script(harness.name))


def episode_id_of(token: str) -> EpisodeId:
    """An episode's id; the token comes first, since an id must not end with ``-a<number>``."""
    return EpisodeId(rollout_id=f"{token}-demo")


@contextmanager
def _logging_to(folder: RunFolder) -> Iterator[None]:
    """Send warnings of all servers to ``inspan.log``, away from the terminal; no empty file is left."""
    handler = logging.FileHandler(folder.path / "inspan.log", encoding="utf-8", delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    handler.setLevel(logging.WARNING)
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        handler.close()


def _failed(reason: str) -> dict[str, Any]:
    failure = {"failure_reason": reason, "terminal": False, "stage": "agent", "partial_response": None}
    return {"result": None, "failure": failure}
