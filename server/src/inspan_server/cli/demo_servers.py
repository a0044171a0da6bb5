"""The servers of the demonstration, each on its own port of the loopback interface, in one process.

They talk to each other over real HTTP, exactly as they would on four machines.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from attrs import define, field, frozen

from inspan_core.codec import encode
from inspan_core.plugins import Plugins
from inspan_core.sandbox import Descriptor, Sandbox, SandboxProvider, SandboxSpec
from inspan_core.wire import EpisodeId
from inspan_runtime.install_cache import default_cache_dir
from inspan_runtime.install_shared import SharedRuntimes, create_with_runtimes
from inspan_runtime.providers.environment import PATH
from inspan_runtime.providers.interpreter import own_interpreter
from inspan_runtime.providers.spec_checks import OWN_FOLDER
from inspan_runtime.service import AgentService
from inspan_server.agent.app import create_app
from inspan_server.agent.config_reading import parse_config
from inspan_server.cli.timeline import Timeline
from inspan_server.environment.app import create_environment_app
from inspan_server.environment.episode import EpisodeLimits, Servers
from inspan_server.environment.resources import create_resources_app
from inspan_server.environment.resources_session import Workplace
from inspan_server.environment.task import Task
from inspan_server.model.capture import Capture
from inspan_server.model.gateway import create_gateway
from inspan_server.model.script import Script
from inspan_server.model.upstream import Upstream
from inspan_server.serving import served

PROVIDER_REF = "sandbox"
MODEL = "policy"
RUN_TIMEOUT_S = 600.0
CLOSE_STEP_TIMEOUT_S = 15.0
LIMITS = EpisodeLimits(episode_timeout_s=1800.0, cleanup_timeout_s=120.0)
SANDBOX_TTL_S = 3600.0
# Long enough for an answer that is on its way, short enough for Ctrl-C.
GRACEFUL_TIMEOUT_S = 0.2


@define
class WatchedProvider:
    """A provider that remembers the sandbox which it made, and shows it this host's runtimes."""

    provider: SandboxProvider
    runtimes: SharedRuntimes = field(factory=lambda: SharedRuntimes(default_cache_dir(os.environ)))
    made: Sandbox | None = field(default=None, init=False)

    @property
    def name(self) -> str:
        return self.provider.name

    async def create(self, spec: SandboxSpec, *, key: str, timeout_s: float = 60.0) -> Sandbox:
        self.made = await create_with_runtimes(
            self.provider, spec, self.runtimes, key=key, timeout_s=timeout_s
        )
        return self.made

    async def connect(self, descriptor: Descriptor, *, timeout_s: float = 30.0) -> Sandbox:
        return await self.provider.connect(descriptor, timeout_s=timeout_s)

    async def stop(self, key: str, *, timeout_s: float = 30.0) -> None:
        await self.provider.stop(key, timeout_s=timeout_s)

    async def list(self, labels: Mapping[str, str]) -> list[Descriptor]:
        return await self.provider.list(labels)

    async def aclose(self) -> None:
        await self.provider.aclose()


@frozen(kw_only=True)
class DemoPlan:
    """What to run.

    Attributes:
        task: The one task.
        script: What the model answers; None with an upstream.
        upstream: The real model's server; None with a script.
        model: The model to ask for.
        scratch: A folder of the host for what a provider without isolation shares; removed afterwards.
        before_stop: As in `create_resources_app`.
    """

    harness: str
    sandbox: str
    plugins: Plugins
    provider: WatchedProvider
    episode_id: EpisodeId
    task: Task
    script: Script | None
    upstream: Upstream | None = None
    model: str = MODEL
    scratch: str
    timeline: Timeline
    capture: Capture
    before_stop: Callable[[Sandbox, str], Awaitable[None]]


@frozen(kw_only=True)
class DemoServers:
    """Where to send the episode, and what can be asked afterwards."""

    environment_url: str
    service: AgentService


def run_request(episode_id: EpisodeId, task: Task) -> dict[str, Any]:
    """The body of ``POST /run``."""
    return {
        "episode_id": encode(episode_id),
        "task": {
            "task_id": encode(task.task_id),
            "task_input": {"responses_create_params": {"input": task.instruction}, "task_data": {}},
        },
    }


@asynccontextmanager
async def demo_servers(plan: DemoPlan) -> AsyncIterator[DemoServers]:
    """Start gateway, Agent Server, Resources Server and Environment Server; stop them in reverse order.

    Raises:
        ConfigError: The harness or the provider refuses its configuration.
    """
    model_key = f"sk-{secrets.token_hex(16)}"
    gateway = create_gateway(
        plan.script,
        plan.capture,
        upstream=plan.upstream,
        keys=lambda rollout_key: model_key,
        models=(plan.model,),
    )
    async with _served(gateway) as model_url:
        agent = create_app(
            _agent_config(plan, model_url),
            plan.plugins,
            model_key=lambda key: model_key,
            retains_artifacts=True,
        )
        resources = create_resources_app(
            plan.provider,
            {plan.task.task_id.task_id: plan.task},
            workplace=_workplace(plan, model_url),
            observe=plan.timeline.on_resources,
            before_stop=plan.before_stop,
        )
        async with _served(agent) as agent_url, _served(resources) as resources_url:
            environment = create_environment_app(
                Servers(resources_url=resources_url, agent_url=agent_url),
                limits=LIMITS,
                observe=plan.timeline.on_step,
            )
            async with _served(environment) as environment_url:
                yield DemoServers(environment_url=environment_url, service=agent.state.service)


def _served(app: Any) -> Any:
    return served(app, graceful_timeout_s=GRACEFUL_TIMEOUT_S)


def _agent_config(plan: DemoPlan, model_url: str) -> Any:
    return parse_config(
        {
            "harness": plan.harness,
            "model_server": {"base_url": model_url, "name": plan.model},
            "timeout": RUN_TIMEOUT_S,
            "session_close_timeout_seconds": CLOSE_STEP_TIMEOUT_S,
            "sandbox_providers": {PROVIDER_REF: {"kind": plan.sandbox}},
            # A sandbox that shares the host's files keeps nothing outside of the scratch folder.
            "session_dir_root": f"{plan.scratch}/s" if _shares_host_files(plan) else "/tmp/inspan",
        },
        name="the demonstration's configuration",
    )


def _workplace(plan: DemoPlan, model_url: str) -> Workplace:
    shares = _shares_host_files(plan)
    # The task needs a python3: the image's, else the one that runs the sandbox's own agent.
    own = os.path.dirname(own_interpreter().path) if shares else f"{OWN_FOLDER}/bin"
    return Workplace(
        workdir=f"{plan.scratch}/repository" if shares else "/app",
        provider_config_ref=PROVIDER_REF,
        reach=(model_url,),
        env={"PATH": f"{PATH}:{own}"},
        ttl_s=SANDBOX_TTL_S,
    )


def _shares_host_files(plan: DemoPlan) -> bool:
    return plan.sandbox == "local"
