"""A plugin under check: what the checks must be told of it, and the sandboxes in which it runs."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from attrs import define, field

from inspan_core.plugins import load_plugins
from inspan_core.relay import Harness
from inspan_core.sandbox import SandboxProvider, SandboxSpec
from inspan_runtime.install_build import package_client_env
from inspan_runtime.install_cache import RuntimeCache, default_cache_dir
from inspan_runtime.install_shared import create_with_runtimes
from inspan_runtime.providers import builtin
from inspan_runtime.testing.harness_episode import Episode, Run
from inspan_runtime.testing.sandbox_check_support import capabilities_of, expect
from inspan_runtime.testing.scripted_model import Reply, scripted_model
from inspan_runtime.testing.sight import MARK

ANSWER = "What the check expects."
COMMAND, PRINTED = "echo from-the-tool-$((6 * 7))", "from-the-tool-42"
"""Who only repeats the command does not say what it prints."""

SANDBOX_TTL_S = 600.0
CREATE_TIMEOUT_S = 120.0
KEPT_KINDS = ("local", "bubblewrap")
"""Kinds of sandboxes whose state a check keeps in its own folder."""

ShellCall = Callable[[str], tuple[str, str]]
"""A shell command to the name of the harness's shell tool and the arguments that a model gives it."""


def json_call(tool: str, argument: str) -> ShellCall:
    """The shell call of a tool whose arguments are one JSON object with one string."""
    return lambda command: (tool, json.dumps({argument: command}))


@define(kw_only=True)
class HarnessCase:
    """What the checks must be told of a plugin.

    Attributes:
        plugin: The plugin's module, an object with its hooks, or a `Harness` with its wrappers.
        folder: An empty folder of this host, for sandboxes' state, and without isolation for workdirs.
        sandbox: The kind of sandboxes: ``local`` (no isolation), ``bubblewrap``, ``docker``, or another.
        image: Of which image they are, for kinds that have images.
        provider_options: Of their provider.
        options: The harness's options, over its defaults.
        shell_call: How a model calls the harness's shell; None: it has none, and checks of tools pass.
        cache: Where its runtime comes from; the user's own cache by default.
        wrappers: Plugins that wrap the harness's hooks: the rules hold with them too.
        deadline_s: The run's deadline where a check lets it fire: longer than the harness takes to call.
    """

    plugin: object
    folder: Path
    sandbox: str = "local"
    image: str | None = None
    provider_options: Mapping[str, Any] = field(factory=dict)
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
        if isinstance(self.plugin, Harness):
            return self.plugin
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
                replies = [Reply(calls=[("call_1", *self.shell_call(COMMAND))]), *replies]
            async with self.episode(*replies) as episode:
                self._whole = await episode.run()
        return self._whole

    @asynccontextmanager
    async def episode(self, *replies: Reply) -> AsyncIterator[Episode]:
        """A sandbox with the plugin's runtime, and a model; both end at the end."""
        own = self.folder / secrets.token_hex(4)
        own.mkdir(parents=True)
        provider = self._provider(own)
        is_isolated = "isolation" in capabilities_of(provider)
        mark = secrets.token_hex(8)
        spec = SandboxSpec(
            workdir="/workspace" if is_isolated else str(own / "work"),
            image=self.image,
            env={MARK: mark},
            ttl_s=SANDBOX_TTL_S,
        )
        sandbox = await create_with_runtimes(
            provider, spec, self.cache.shared, key=f"check-{mark}", timeout_s=CREATE_TIMEOUT_S
        )
        try:
            with scripted_model(*replies) as model:
                yield await Episode.begin(
                    self.harness,
                    sandbox,
                    model,
                    cache=self.cache,
                    options=self.options,
                    lease_s=SANDBOX_TTL_S,
                    mark=None if is_isolated else f"{MARK}={mark}",
                )
        finally:
            with anyio.CancelScope(shield=True):
                await sandbox.stop()
                await provider.aclose()
                await anyio.to_thread.run_sync(self.cache.shared.let_go, sandbox.sandbox_id)
                shutil.rmtree(own, ignore_errors=True)

    def _provider(self, own: Path) -> SandboxProvider:
        options = dict(self.provider_options)
        if self.sandbox in KEPT_KINDS:
            options.setdefault("runtime_dir", str(own / "run"))
        return load_plugins([builtin]).provider_factory(self.sandbox)(options)


Check = Callable[[HarnessCase], Awaitable[None]]
