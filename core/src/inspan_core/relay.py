"""The hooks of one harness: exactly one implementation of each, with every installed plugin's wrappers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from inspect import isawaitable
from typing import Any, TypeVar

import pluggy
from attrs import define, field

from inspan_core import hookspecs
from inspan_core.errors import PluginError
from inspan_core.harness import (
    ActivationContext,
    CollectContext,
    HarnessContext,
    HarnessSpec,
    ParsedActivation,
    ParseInput,
    SandboxCommand,
)

T = TypeVar("T")
_OBJECT: type[dict[str, Any]] = dict

HARNESS_HOOKS = ("inspan_install", "inspan_stage", "inspan_collect", "inspan_parse")
"""What a harness's own plugin must implement, beside `inspan_harness`."""


def is_wrapper(options: Mapping[str, Any]) -> bool:
    """Whether a hook implementation with these pluggy options wraps others."""
    return bool(options.get("wrapper") or options.get("hookwrapper"))


class HookManager(pluggy.PluginManager):
    """A plugin manager that knows the hooks of inspan."""

    def __init__(self) -> None:
        super().__init__(hookspecs.PROJECT)
        self.add_hookspecs(hookspecs)


class _RelayManager(HookManager):
    """Takes every hook of the harness's own plugin, and of the others only wrappers."""

    def __init__(self, owner: object) -> None:
        super().__init__()
        self._owner = owner

    def parse_hookimpl_opts(self, plugin: object, name: str) -> pluggy.HookimplOpts | None:
        options = super().parse_hookimpl_opts(plugin, name)
        if options is None or plugin is self._owner or is_wrapper(options):
            return options
        return None


@define
class Harness:
    """A harness that is ready to use: its declaration and its hooks.

    Attributes:
        spec: The plugin's declaration.
        distribution: The distribution that brought it, for messages.
    """

    spec: HarnessSpec
    distribution: str
    _manager: pluggy.PluginManager = field(repr=False, alias="manager")

    async def install(self, context: HarnessContext) -> Mapping[str, Any]:
        """Make the runtime ready in the session's sandbox; a JSON object that staging finds."""
        runtime = await self._awaitable("inspan_install", context=context)
        return self._checked("inspan_install", runtime, _OBJECT, "a JSON object")

    async def stage(self, context: ActivationContext) -> SandboxCommand:
        """Upload the activation's input; what to run."""
        command = await self._awaitable("inspan_stage", context=context)
        return self._checked("inspan_stage", command, SandboxCommand, "a SandboxCommand")

    async def collect(self, context: CollectContext) -> None:
        """Copy artifacts to the host."""
        await self._awaitable("inspan_collect", context=context)

    def parse(self, run: ParseInput) -> ParsedActivation:
        """Turn artifacts into a response and observations; pure, for a worker thread."""
        parsed = self._manager.hook.inspan_parse(run=run)
        return self._checked("inspan_parse", parsed, ParsedActivation, "a ParsedActivation")

    def _awaitable(self, hook: str, **arguments: object) -> Any:
        result = getattr(self._manager.hook, hook)(**arguments)
        if not isawaitable(result):
            raise PluginError(
                f"{self.distribution}: {hook} returned {type(result).__name__}, expected an awaitable"
            )
        return result

    def _checked(self, hook: str, value: object, kind: type[T], expected: str) -> T:
        if not isinstance(value, kind):
            raise PluginError(f"{self.distribution}: {hook} gave {type(value).__name__}, expected {expected}")
        return value


def build_harness(spec: HarnessSpec, distribution: str, owner: object, others: Iterable[object]) -> Harness:
    """Put a harness's relay together.

    Args:
        owner: The plugin that declared `spec`.
        others: Every other plugin: the later one wraps the earlier ones.
    """
    manager = _RelayManager(owner)
    for plugin in (owner, *others):
        manager.register(plugin)
    return Harness(spec=spec, distribution=distribution, manager=manager)
