"""One activation of a plugin in a real sandbox, its hooks driven by hand in the order of a session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import define, field

from inspan_core.harness import Artifacts, ParsedActivation, ParseInput, SandboxCommand
from inspan_core.receipts import CleanupReceipt
from inspan_core.sandbox import Sandbox
from inspan_core.wire import ToolAccess
from inspan_runtime.contexts import ArtifactContext, RunContext, SessionContext
from inspan_runtime.install import SandboxInstaller
from inspan_runtime.sandbox_session import SandboxSession

CLOSE_TIMEOUT_S = 30.0


@define(kw_only=True)
class PluginEpisode:
    """A session of one plugin in one sandbox.

    Attributes:
        plugin: The plugin's module, with its hooks.
        model_key: The key that the harness is given for the model server.
        runtime: What the plugin's installation returned.
        artifacts: What was collected.
    """

    plugin: Any
    sandbox: Sandbox
    workdir: str
    session_dir: str
    installer: SandboxInstaller
    options: Mapping[str, Any] = field(factory=dict)
    tool_accesses: Sequence[ToolAccess] = field(default=(), repr=False)
    model_name: str = "org/policy"
    model_key: str = field(default="sk-episode", repr=False)
    runtime: Mapping[str, Any] = field(factory=dict)
    artifacts: Artifacts = field(factory=Artifacts)
    session: SandboxSession[Artifacts] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.session = SandboxSession(
            sandbox=self.sandbox,
            session_dir=self.session_dir,
            workdir=self.workdir,
            owns_sandbox=False,
            harness=self.plugin.inspan_harness().name,
        )

    async def seed(self) -> None:
        """Let the plugin install its runtime."""
        self.runtime = await self.plugin.inspan_install(SessionContext(**self._common()))

    async def run(
        self, request: Mapping[str, Any], model_base_url: str, *, timeout: float = 60.0
    ) -> ParsedActivation:
        """Stage, launch, prove the end, collect and parse.

        Args:
            timeout: Seconds that the harness may run.

        Raises:
            RuntimeError: The harness was not proven stopped.
        """

        async def stage() -> SandboxCommand:
            context = RunContext(
                **self._common(),
                request=request,
                runtime=self.runtime,
                model_base_url=model_base_url,
                model_name=self.model_name,
                model_key=self.model_key,
                run_timeout_s=timeout,
            )
            command: SandboxCommand = await self.plugin.inspan_stage(context)
            return command

        async def collect() -> Artifacts:
            context = ArtifactContext(**self._common())
            await self.plugin.inspan_collect(context)
            return context.artifacts

        self.artifacts = await self.session.execute(
            stage_activation=stage, collect=collect, timeout=timeout, close_timeout=CLOSE_TIMEOUT_S
        )
        receipt = self.session.receipt
        if receipt is None or not receipt.cleanup_confirmed:
            raise RuntimeError(f"the harness was not proven stopped: {receipt}")
        return self._parsed(request, receipt)

    def _parsed(self, request: Mapping[str, Any], receipt: CleanupReceipt) -> ParsedActivation:
        parsed: ParsedActivation = self.plugin.inspan_parse(
            ParseInput(
                artifacts=self.artifacts,
                request=request,
                return_code=receipt.return_code,
                timed_out=receipt.timed_out,
                interrupted=False,
                model_name=self.model_name,
                sandbox_id=self.sandbox.sandbox_id,
                options=self.options,
            )
        )
        return parsed

    def _common(self) -> dict[str, Any]:
        return {
            "sandbox": self.sandbox,
            "session_dir": self.session_dir,
            "workdir": self.workdir,
            "installer": self.installer,
            "options": self.options,
            "tool_accesses": self.tool_accesses,
        }
