"""Provider ``local``: commands run on the host itself. It isolates nothing.

For development, and for machines that are themselves disposable: commands see the host's files, processes and
network, as the server's user. The contract is otherwise the isolating providers': every command has a session
of its own and is killed by its group, the sandbox has a keeper with a time to live, `stop` ends every process
that came from it (also one that made itself a session) and removes its bookkeeping folder. The workdir is the
host's own folder; it is made if it does not exist, and it stays.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inspan_core.errors import ConfigError, MountConflict
from inspan_core.sandbox import Descriptor, Sandbox, SandboxSpec
from inspan_runtime.providers import state_folder
from inspan_runtime.providers.boot import command
from inspan_runtime.providers.environment import command_environment
from inspan_runtime.providers.holding import HeldSandbox
from inspan_runtime.providers.interpreter import own_interpreter
from inspan_runtime.providers.kept_sandboxes import KeptSandboxes, Plan
from inspan_runtime.providers.reach import loopback_addresses
from inspan_runtime.providers.spec_checks import check_options, check_spec, refuse_limits
from inspan_runtime.providers.strays import MARKER, end_strays

NAME = "local"
OPTIONS: Mapping[str, type | tuple[type, ...]] = {"runtime_dir": str, "ignore_limits": bool}


class LocalProvider:
    """Implements `inspan_core.sandbox.SandboxProvider` without any isolation.

    Args:
        options: ``runtime_dir``: the bookkeeping folder; by default below XDG_RUNTIME_DIR or /tmp.
            ``ignore_limits``: whether a specification's limits of processor, memory and processes, which
            this provider cannot keep, are accepted and not kept; otherwise they are refused.
    """

    name = NAME
    capabilities = frozenset(("processes", "options", "reach", "late_reach", "usage"))

    def __init__(self, options: Mapping[str, Any]) -> None:
        check_options(NAME, options, OPTIONS)
        self.options = dict(options)
        self._accepts_no_limits: bool = options.get("ignore_limits", False)
        runtime_dir = Path(options.get("runtime_dir") or state_folder.default_runtime_dir())
        self._interpreter = own_interpreter()
        self._kept = KeptSandboxes(NAME, runtime_dir.absolute(), self._interpreter, end_strays)

    async def create(self, spec: SandboxSpec, *, key: str, timeout_s: float = 60.0) -> Sandbox:
        """See `inspan_core.sandbox.SandboxProvider.create`."""
        check_spec(NAME, spec)
        if spec.root != "host":
            raise ConfigError(f"root: {spec.root!r}: provider local has the host's root only; use bubblewrap")
        if spec.mounts:
            raise MountConflict("provider local cannot mount anything; use bubblewrap")
        if not self._accepts_no_limits:
            refuse_limits(NAME, spec)
        loopback_addresses(spec.reach)
        return await self._kept.create(
            lambda sandbox_id: self._plan(spec, sandbox_id), spec, key, timeout_s=timeout_s
        )

    def _plan(self, spec: SandboxSpec, sandbox_id: str) -> Plan:
        state = self._kept.runtime_dir / NAME / sandbox_id
        home = str(state / "home")
        return Plan(
            descriptor={
                "workdir": spec.workdir,
                "isolation": "none",
                "python": self._interpreter.path,
                "scratch": str(state / "scratch"),
            },
            orders=lambda: {
                "executable": self._interpreter.path,
                "argv": command(self._interpreter.path),
                "bwrap": [],
                "map_ids": False,
                "root": None,
                "isolated": False,
                "reach": [],
            },
            agent_orders={
                "env": command_environment(home=home, extra={**spec.env, MARKER: sandbox_id}),
                "workdir": os.fsencode(spec.workdir),
                "reach": [],
                "isolated": False,
            },
        )

    async def connect(self, descriptor: Descriptor, *, timeout_s: float = 30.0) -> Sandbox:
        """See `inspan_core.sandbox.SandboxProvider.connect`."""
        return await self._kept.connect(descriptor, timeout_s=timeout_s)

    async def stop(self, key: str, *, timeout_s: float = 30.0) -> None:
        """See `inspan_core.sandbox.SandboxProvider.stop`."""
        await self._kept.stop(key, timeout_s=timeout_s)

    async def list(self, labels: Mapping[str, str]) -> list[Descriptor]:
        """See `inspan_core.sandbox.SandboxProvider.list`."""
        return await self._kept.find(labels)

    async def held(self) -> tuple[HeldSandbox, ...]:
        """See `inspan_runtime.providers.holding.HoldingProvider.held`."""
        return await self._kept.held()

    async def remove(self, held: HeldSandbox) -> None:
        """See `inspan_runtime.providers.holding.HoldingProvider.remove`."""
        await self._kept.remove(held)

    async def aclose(self) -> None:
        """See `inspan_core.sandbox.SandboxProvider.aclose`: nothing is held."""
