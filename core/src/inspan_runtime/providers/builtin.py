"""The plugin that brings the built-in providers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from inspan_core.hookspecs import hookimpl
from inspan_core.sandbox import SandboxProvider
from inspan_runtime.providers.bubblewrap import BubblewrapProvider
from inspan_runtime.providers.docker.provider import DockerProvider
from inspan_runtime.providers.local import LocalProvider


@hookimpl
def inspan_sandbox_providers() -> Mapping[str, Callable[[Mapping[str, Any]], SandboxProvider]]:
    """Return the factory of each kind; it takes its configuration block's options."""
    return {"local": LocalProvider, "bubblewrap": BubblewrapProvider, "docker": DockerProvider}
