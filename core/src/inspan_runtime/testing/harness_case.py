"""A plugin under check: its hooks driven in a sandbox of this host, against a scripted model."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from attrs import define, field

from inspan_core.errors import HarnessError
from inspan_core.harness import Artifacts, ParsedActivation, ParseInput, SandboxCommand
from inspan_core.plugins import load_plugins
from inspan_core.receipts import CleanupReceipt
from inspan_core.relay import Harness
from inspan_core.sandbox import Sandbox, SandboxSpec
from inspan_runtime.contexts import ArtifactContext, RunContext, SessionContext
from inspan_runtime.install import SandboxInstaller
from inspan_runtime.install_build import package_client_env
from inspan_runtime.install_cache import RuntimeCache, default_cache_dir
from inspan_runtime.providers.local import LocalProvider
from inspan_runtime.providers.strays import MARKER
from inspan_runtime.sandbox_session import SandboxSession
from inspan_runtime.testing.scripted_model import Reply, ScriptedModel, scripted_model
from inspan_runtime.testing.who_calls import pids

MODEL_NAME = "policy"
PROMPT = "Say what the check expects."
ANSWER = "What the check expects."
CLOSE_TIMEOUT_S = 30.0
ASKED_TIMEOUT_S = 60.0
SANDBOX_TTL_S = 600.0

ShellCall = Callable[[str], tuple[str, str]]
"""A shell command to the name of the harness's shell tool and the arguments that a model gives it."""


class CheckFailed(AssertionError):
    """The plugin breaks a rule; the message says which and how."""


def expect(claim: bool, sentence: str) -> None:
    """Raise `CheckFailed` with a sentence unless a claim is true."""
    if not claim:
        raise CheckFailed(sentence)


def json_call(tool: str, argument: str) -> ShellCall:
    """The shell call of a tool whose arguments are one JSON object with one string."""
    return lambda command: (tool, json.dumps({argument: command}))


@define(kw_only=True)
class Run:
    """One activation that has ended.

    Attributes:
        command: What staging returned, or None when it was not staged.
        receipt: The termination receipt, or None when nothing was proven.
        artifacts: What was collected.
        parsed: What the parser made of it.
        model: The model that was called, still serving.
        supervisor_pid: The supervisor's process id, or None.
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
class HarnessCase:
    """What the checks must be told of a plugin.

    Attributes:
        plugin: The plugin's module, or an object with its hooks.
        folder: An empty folder of this host, for sandboxes, workdirs and session folders.
        options: The harness's options, over its defaults.
        shell_call: How a model calls the harness's shell; None: it has none, and checks of tools pass.
        cache: Where its runtime comes from; the user's own cache by default.
        wrappers: Plugins that wrap the harness's hooks: the rules hold with them too.
        deadline_s: The run's deadline where a check lets it fire: longer than the harness takes to call.
    """

    plugin: object
    folder: Path
    options: Mapping[str, Any] = field(factory=dict)
    shell_call: ShellCall | None = None
    cache: RuntimeCache = field(
        factory=lambda: RuntimeCache(default_cache_dir(os.environ), client_env=package_client_env(os.environ))
    )
    wrappers: Sequence[object] = ()
    deadline_s: float = 5.0
    _whole: Run | None = None

    @property
    def harness(self) -> Harness:
        """The plugin as a server uses it."""
        plugins = load_plugins([self.plugin, *self.wrappers], entry_points=False)
        expect(not plugins.problems, "; ".join(map(str, plugins.problems)))
        names = plugins.harness_names()
        expect(len(names) == 1, f"the plugin declares the harnesses {names}, expected one")
        return plugins.harness(names[0])

    async def whole_run(self) -> Run:
        """A run that ends well, with a tool where there is one; made once for all checks that read it."""
        if self._whole is None:
            replies = [Reply(text=ANSWER)]
            if self.shell_call is not None:
                replies = [Reply(calls=[("call_1", *self.shell_call("echo from-the-tool"))]), *replies]
            async with self.episode(*replies) as episode:
                self._whole = await episode.run()
        return self._whole

    @asynccontextmanager
    async def episode(self, *replies: Reply) -> AsyncIterator[Episode]:
        """A sandbox with the plugin's runtime, and a model; both end at the end."""
        own = self.folder / secrets.token_hex(4)
        own.mkdir(parents=True)
        provider = LocalProvider({"runtime_dir": str(own / "run")})
        spec = SandboxSpec(workdir=str(own / "work"), ttl_s=SANDBOX_TTL_S)
        sandbox = await provider.create(spec, key="check")
        try:
            with scripted_model(*replies) as model:
                yield await Episode.begin(self, sandbox, own, model)
        finally:
            with anyio.CancelScope(shield=True):
                await sandbox.stop()
                await provider.aclose()
                shutil.rmtree(own, ignore_errors=True)


@define(kw_only=True)
class Episode:
    """One session of the plugin.

    Attributes:
        key: The model's key, which nobody but the harness may see.
        prompt: The input, with a word that is found nowhere else.
        workdir: The task's folder, on this host.
        home: The task's HOME, on this host.
        session_dir: The session's folder, on this host.
        staged: What staging returned.
    """

    case: HarnessCase
    harness: Harness
    model: ScriptedModel
    sandbox: Sandbox
    session: SandboxSession[Artifacts]
    workdir: str
    home: Path
    session_dir: str
    key: str
    prompt: str
    common: Mapping[str, Any] = field(repr=False)
    runtime: Mapping[str, Any]
    staged: SandboxCommand | None = None
    _supervisor_pid: int | None = None

    @classmethod
    async def begin(cls, case: HarnessCase, sandbox: Sandbox, own: Path, model: ScriptedModel) -> Episode:
        """Let the plugin install its runtime."""
        harness = case.harness
        workdir, session_dir = str(own / "work"), str(own / "session" / "s")
        common: dict[str, Any] = {
            "sandbox": sandbox,
            "session_dir": session_dir,
            "workdir": workdir,
            "installer": SandboxInstaller(sandbox, case.cache, workdir=workdir),
            "options": {**harness.spec.options, **case.options},
            "tool_accesses": (),
        }
        home = await sandbox.exec(["sh", "-c", 'printf %s "$HOME"'], timeout_s=30.0)
        return cls(
            case=case,
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
            home=Path(os.fsdecode(home.stdout)),
            session_dir=session_dir,
            key=f"sk-{secrets.token_hex(12)}",
            prompt=f"{PROMPT} Its word is {secrets.token_hex(12)}.",
            common=common,
            runtime=await harness.install(SessionContext(**common)),
        )

    async def run(self, *, timeout_s: float = 120.0, stop_after: Callable[[], None] | None = None) -> Run:
        """Stage, launch, prove the end, collect and parse.

        Args:
            timeout_s: The run's deadline.
            stop_after: Called once the model was called; then the session is closed.
        """
        before = self._processes()
        if stop_after is None:
            await self._execute(timeout_s)
        else:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._execute_until_closed, timeout_s)
                finding = await self._finding(stop_after)
                await self.session.close(timeout=CLOSE_TIMEOUT_S)
            if finding is not None:
                raise finding
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
            left=frozenset(self._processes() - before),
        )

    @property
    def request(self) -> dict[str, Any]:
        """The activation's request."""
        return {"input": [{"role": "user", "content": self.prompt}]}

    async def _finding(self, look: Callable[[], None]) -> CheckFailed | None:
        """What is wrong while the harness waits for the model."""
        try:
            await self._until_asked()
            look()
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
            model_base_url=self.model.base_url,
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
        self._supervisor_pid = _number(Path(self.session_dir, "supervisor.pid"))
        return context.artifacts

    def _processes(self) -> set[int]:
        """Processes that come from the sandbox, by the word in their environment."""
        word = f"{MARKER}={self.sandbox.sandbox_id}".encode()
        return {pid for pid in pids() if word in _environment(pid)}


def _environment(pid: int) -> Sequence[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return ()


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


Check = Callable[[HarnessCase], Awaitable[None]]
