"""Which programs a configuration's sandboxes need of this machine, and lack."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from inspan_core.errors import ProviderUnavailable
from inspan_runtime.providers.bubblewrap import find_bubblewrap
from inspan_runtime.providers.docker.engine import find_engine
from inspan_server.agent.config import AgentConfig

FINDERS: Mapping[str, Callable[[Mapping[str, Any]], object]] = {
    "bubblewrap": lambda block: find_bubblewrap(block.get("bwrap")),
    "docker": lambda block: find_engine(block.get("engine", "docker"), block.get("engine_options", ())),
}
"""By the kind of the built-in providers that need one."""


def lacking_programs(config: AgentConfig) -> tuple[str, ...]:
    """A sentence for each provider block whose program is not there, or does not run."""
    found = []
    for name, block in config.sandbox_providers.items():
        find = FINDERS.get(block["kind"])
        try:
            if find is not None:
                find(block)
        except ProviderUnavailable as error:
            found.append(f"sandbox_providers.{name}: {error}")
    return tuple(found)
