"""The pure session machine of inspan, its wire types, its hooks, and what sandboxes and harnesses must be.

Nothing here reads a clock, the environment, a file or the network. Read `inspan_core.tables` first.
"""

from inspan_core.errors import InspanError
from inspan_core.harness import (
    ActivationContext,
    Artifacts,
    CollectContext,
    HarnessContext,
    HarnessSpec,
    ParsedActivation,
    ParseInput,
    RuntimeKey,
    SandboxCommand,
)
from inspan_core.hookspecs import hookimpl
from inspan_core.machine import step
from inspan_core.observations import AgentObservationBundle, ObservationGap
from inspan_core.plugins import load_plugins
from inspan_core.sandbox import Sandbox, SandboxProvider, SandboxSpec
from inspan_core.session import Phase, Session, Settings

__all__ = [
    "ActivationContext",
    "AgentObservationBundle",
    "Artifacts",
    "CollectContext",
    "HarnessContext",
    "HarnessSpec",
    "InspanError",
    "ObservationGap",
    "ParseInput",
    "ParsedActivation",
    "Phase",
    "RuntimeKey",
    "Sandbox",
    "SandboxCommand",
    "SandboxProvider",
    "SandboxSpec",
    "Session",
    "Settings",
    "hookimpl",
    "load_plugins",
    "step",
]
