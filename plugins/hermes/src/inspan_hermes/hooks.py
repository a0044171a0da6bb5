"""The hooks of the plugin."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from typing import Any

from inspan_core.function_tools import READY, READY_LIMIT_BYTES, granted_functions
from inspan_core.harness import (
    ActivationContext,
    CollectContext,
    HarnessContext,
    HarnessSpec,
    ParsedActivation,
    ParseInput,
    SandboxCommand,
)
from inspan_core.hookspecs import hookimpl
from inspan_core.shim_run import RUNNER, stage_shim, upload_shim
from inspan_hermes import parse, runtime
from inspan_hermes.declaration import HARNESS, read_options
from inspan_hermes.request import read_request
from inspan_hermes.servers import read_servers
from inspan_hermes.settings import HOME, run_order

# Parts of the shim, beside the library that all shims share.
LIBRARY = ("agent_run.py", "model_calls.py")
# Each artifact and the most that is taken of it; of the last ones only the tail matters.
WHOLE_FILES = {
    "output.json": 8 * 1024 * 1024,
    "runtime_info.json": 64 * 1024,
    "ready.json": 1024 * 1024,
}
# Not there when Hermes was not even loaded.
HERMES_LOG = f"{HOME}/logs/agent.log"
TAIL_FILES = {
    "events.jsonl": 64 * 1024 * 1024,
    "output.log": 1024 * 1024,
}


@hookimpl
def inspan_harness() -> HarnessSpec:
    """Declare Hermes."""
    return HARNESS


@hookimpl
async def inspan_install(context: HarnessContext) -> Mapping[str, Any]:
    """Check, reuse or install the runtime; upload the shim."""
    read_options(context.options)
    read_servers(context.tool_accesses)
    found = await runtime.install(context)
    package = resources.files("inspan_hermes")
    own = {f"lib/inspan_hermes/{name}": package.joinpath(name).read_text() for name in LIBRARY}
    for name, text in own.items():
        await context.upload_text(name, text, mode=0o600)
    await upload_shim(context, package.joinpath(RUNNER).read_text())
    return found


@hookimpl
async def inspan_stage(context: ActivationContext) -> SandboxCommand:
    """Upload the activation's input; the command names only the shim."""
    options = read_options(context.options)
    tools = granted_functions(context.request, HARNESS, context.tool_accesses)
    order = run_order(
        read_request(context.request, options),
        options,
        prefix=str(context.runtime["prefix"]),
        session_dir=context.session_dir,
        workdir=context.workdir,
        model_base_url=context.model_base_url,
        model_name=context.model_name,
        model_key=context.model_key,
        run_timeout_s=context.run_timeout_s,
        servers=read_servers(context.tool_accesses),
        tools=tools,
    )
    return await stage_shim(context, order)


@hookimpl
async def inspan_collect(context: CollectContext) -> None:
    """Copy what the shim and Hermes left."""
    for name, limit_bytes in WHOLE_FILES.items():
        await context.download(name, limit_bytes=limit_bytes)
    await context.download(READY, limit_bytes=READY_LIMIT_BYTES, optional=True)
    for name, limit_bytes in TAIL_FILES.items():
        await context.download(name, limit_bytes=limit_bytes, tail=True)
    await context.download(HERMES_LOG, limit_bytes=1024 * 1024, tail=True, optional=True)


@hookimpl
def inspan_parse(run: ParseInput) -> ParsedActivation:
    """Turn the artifacts into a response and observations."""
    return parse.parse(run)
