"""The hooks of the plugin."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from importlib import resources
from typing import Any

from inspan_core.function_tools import granted_functions
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
from inspan_core.shim_run import RUNNER, collect_shim, stage_shim, upload_shim
from inspan_pi import parse, runtime
from inspan_pi.declaration import HARNESS, OTHER_TOOLS, read_options
from inspan_pi.request import read_request
from inspan_pi.settings import run_order

SESSION_LIMIT_BYTES = 64 * 1024 * 1024


@hookimpl
def inspan_harness() -> HarnessSpec:
    """Declare Pi."""
    return HARNESS


@hookimpl
async def inspan_install(context: HarnessContext) -> Mapping[str, Any]:
    """Check, reuse or install the runtime; upload the shim."""
    read_options(context.options)
    found = await runtime.install(context.installer)
    await upload_shim(context, resources.files("inspan_pi").joinpath(RUNNER).read_text())
    return found


@hookimpl
async def inspan_stage(context: ActivationContext) -> SandboxCommand:
    """Upload the activation's input; the command names only the shim."""
    options = read_options(context.options)
    tools = granted_functions(context.request, HARNESS, context.tool_accesses, taken=OTHER_TOOLS)
    order = run_order(
        read_request(context.request, options),
        options,
        tools=tools,
        session_id=str(uuid.uuid4()),
        prefix=str(context.runtime["prefix"]),
        session_dir=context.session_dir,
        workdir=context.workdir,
        model_base_url=context.model_base_url,
        model_name=context.model_name,
        model_key=context.model_key,
        run_timeout_s=context.run_timeout_s,
    )
    return await stage_shim(context, order)


@hookimpl
async def inspan_collect(context: CollectContext) -> None:
    """Copy what the shim and Pi left."""
    await collect_shim(context, {"session.jsonl": SESSION_LIMIT_BYTES})


@hookimpl
def inspan_parse(run: ParseInput) -> ParsedActivation:
    """Turn the artifacts into a response and observations."""
    return parse.parse(run)
