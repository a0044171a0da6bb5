"""One session of a plugin under check, driven hook by hook against a scripted model."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
from anyio.from_thread import BlockingPortal
from attrs import define, field

from inspan_core.errors import HarnessError, SandboxError
from inspan_core.harness import Artifacts, ParsedActivation, ParseInput, SandboxCommand
from inspan_core.receipts import CleanupReceipt
from inspan_core.relay import Harness
from inspan_core.sandbox import Sandbox
from inspan_runtime.contexts import ArtifactContext, RunContext, SessionContext
from inspan_runtime.install import SandboxInstaller
from inspan_runtime.install_cache import RuntimeCache
from inspan_runtime.sandbox_session import SandboxSession
from inspan_runtime.session_reach import SessionReach
from inspan_runtime.testing.sandbox_check_support import CheckFailed, expect
from inspan_runtime.testing.scripted_model import ScriptedModel
from inspan_runtime.testing.sight import Caller, Sight

MODEL_NAME = "policy"
PROMPT = "Say what the check expects."
CLOSE_TIMEOUT_S = 30.0
ASKED_TIMEOUT_S = 60.0


@define(kw_only=True)
class Run:
    """One activation that has ended.

    Attributes:
        command: What staging returned, or None when it was not staged.
        receipt: The termination receipt, or None when nothing was proven.
        artifacts: What was collected.
        parsed: What the parser made of it.
        model: The model that was called, still serving.
        supervisor_pid: The supervisor's process id, as the sandbox counts, or None.
        left: Processes of the sandbox that were not there before the run.
    """

    command: SandboxCommand | None
    receipt: CleanupReceipt | None
    artifacts: Artifacts
    parse_input: ParseInput
    parsed: ParsedActivation
    model: ScriptedModel
    supervisor_pid: int | None
    left: frozenset[int]


@define(kw_only=True)
class Episode:
    """One session of the plugin.

    Attributes:
        key: The model's key, which nobody but the harness may see.
        prompt: The input, with a word that is found nowhere else.
        workdir: The task's folder, inside.
        home: The task's HOME, inside.
        session_dir: The session's folder, inside.
        model_base_url: The rollout's base URL, as it is used inside.
        sight: Looks into the sandbox.
        runtime: What the plugin's installation returned.
        install_s: Seconds that the installation took, with the look at what the sandbox is.
        staged: What staging returned.
    """

    harness: Harness
    model: ScriptedModel
    sandbox: Sandbox
    session: SandboxSession[Artifacts]
    workdir: str
    home: str
    session_dir: str
    model_base_url: str
    sight: Sight
    key: str
    prompt: str
    common: Mapping[str, Any] = field(repr=False)
    runtime: Mapping[str, Any]
    install_s: float
    staged: SandboxCommand | None = None
    _supervisor_pid: int | None = None

    @classmethod
    async def begin(
        cls,
        harness: Harness,
        sandbox: Sandbox,
        model: ScriptedModel,
        *,
        cache: RuntimeCache,
        options: Mapping[str, Any],
        lease_s: float,
        mark: str | None,
    ) -> Episode:
        """Open the way to the model, and let the plugin install its runtime.

        Args:
            options: The harness's, over its defaults.
            lease_s: How long the sandbox lives at most, in seconds.
            mark: See `Sight`.
        """
        workdir = str(sandbox.descriptor["workdir"])
        session_dir = f"{sandbox.descriptor.get('scratch', '/tmp/inspan')}/checks/check"
        installer = SandboxInstaller(sandbox, cache, workdir=workdir, lease_s=lease_s)
        reach = SessionReach()
        await reach.open(sandbox, model.base_url, (), holder="check")
        common: dict[str, Any] = {
            "sandbox": sandbox,
            "session_dir": session_dir,
            "workdir": workdir,
            "installer": installer,
            "options": {**harness.spec.options, **options},
            "tool_accesses": (),
        }
        home = await sandbox.exec(["sh", "-c", 'printf %s "$HOME"'], timeout_s=30.0)
        started = time.monotonic()
        python = (await installer.target()).python
        runtime = await harness.install(SessionContext(**common))
        return cls(
            harness=harness,
            model=model,
            sandbox=sandbox,
            session=SandboxSession(
                sandbox=sandbox,
                session_dir=session_dir,
                workdir=workdir,
                owns_sandbox=False,
                harness=harness.spec.name,
            ),
            workdir=workdir,
            home=os.fsdecode(home.stdout),
            session_dir=session_dir,
            model_base_url=reach.inside(model.base_url),
            sight=Sight(sandbox=sandbox, python=python or "python3", mark=mark),
            key=f"sk-{secrets.token_hex(12)}",
            prompt=f"{PROMPT} Its word is {secrets.token_hex(12)}.",
            common=common,
            runtime=runtime,
            install_s=time.monotonic() - started,
        )

    async def run(
        self, *, timeout_s: float = 120.0, stop_after: Callable[[], Awaitable[None]] | None = None
    ) -> Run:
        """Stage, launch, prove the end, collect and parse.

        Args:
            timeout_s: The run's deadline.
            stop_after: Called once the model was called; then the session is closed.
        """
        before = await self.sight.processes()
        async with BlockingPortal() as portal:
            with self.model.witnessed(partial(portal.call, self._callers)):
                problem = await self._run(timeout_s, stop_after)
        if problem is not None:
            raise problem
        receipt = self.session.receipt
        given = ParseInput(
            artifacts=self.session.artifacts or Artifacts(),
            request=self.request,
            return_code=None if receipt is None else receipt.return_code,
            timed_out=receipt is not None and receipt.timed_out,
            interrupted=stop_after is not None,
            model_name=MODEL_NAME,
            sandbox_id=self.sandbox.sandbox_id,
            options=self.common["options"],
        )
        return Run(
            command=self.staged,
            receipt=receipt,
            artifacts=given.artifacts,
            parse_input=given,
            parsed=self.harness.parse(given),
            model=self.model,
            supervisor_pid=self._supervisor_pid,
            left=frozenset(await self.sight.processes() - before),
        )

    async def _run(
        self, timeout_s: float, stop_after: Callable[[], Awaitable[None]] | None
    ) -> Exception | None:
        """Run to the end; what went wrong, which a portal would wrap were it raised."""
        try:
            if stop_after is None:
                await self._execute(timeout_s)
                return None
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._execute_until_closed, timeout_s)
                finding = await self._finding(stop_after)
                await self.session.close(timeout=CLOSE_TIMEOUT_S)
            return finding
        except Exception as error:  # whatever a plugin's hooks raise; `run` raises it
            return error

    async def _callers(self) -> tuple[Caller, ...]:
        """Who holds a connection to the model now."""
        try:
            return await self.sight.callers(urlsplit(self.model_base_url).port or 80)
        except SandboxError:
            return ()  # The call came as the sandbox ended.

    @property
    def request(self) -> dict[str, Any]:
        """The activation's request."""
        return {"input": [{"role": "user", "content": self.prompt}]}

    async def _finding(self, look: Callable[[], Awaitable[None]]) -> CheckFailed | None:
        """What is wrong while the harness waits for the model."""
        try:
            await self._until_asked()
            await look()
        except CheckFailed as finding:
            return finding
        return None

    async def _until_asked(self) -> None:
        """Wait until the model was called."""
        asked = self.model.asked
        is_asked = await anyio.to_thread.run_sync(asked.wait, ASKED_TIMEOUT_S, abandon_on_cancel=True)
        expect(is_asked, f"the model was not called within {ASKED_TIMEOUT_S:.0f} s")

    async def _execute(self, timeout_s: float) -> None:
        await self.session.execute(
            stage_activation=self.stage,
            collect=self.collect,
            timeout=timeout_s,
            close_timeout=CLOSE_TIMEOUT_S,
        )

    async def _execute_until_closed(self, timeout_s: float) -> None:
        with suppress(HarnessError):  # It says that the session was closed.
            await self._execute(timeout_s)

    async def stage(self) -> SandboxCommand:
        """Let the plugin stage the activation."""
        context = RunContext(
            **self.common,
            request=self.request,
            runtime=self.runtime,
            model_base_url=self.model_base_url,
            model_name=MODEL_NAME,
            model_key=self.key,
            run_timeout_s=120.0,
        )
        self.staged = await self.harness.stage(context)
        return self.staged

    async def collect(self) -> Artifacts:
        """Let the plugin copy its artifacts."""
        context = ArtifactContext(**self.common)
        await self.harness.collect(context)
        with suppress(FileNotFoundError, ValueError):
            self._supervisor_pid = int(await context.read_text("supervisor.pid", limit_bytes=32))
        return context.artifacts
