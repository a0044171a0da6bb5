"""The hooks of the plugin."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from importlib import resources
from typing import Any

from inspan_codex import parse, runtime
from inspan_codex.declaration import HARNESS, read_options
from inspan_codex.request import read_request
from inspan_codex.servers import read_servers
from inspan_codex.settings import HOME, run_order
from inspan_core.errors import ExecTimeout
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

THREAD_LIMIT_BYTES = 64 * 1024 * 1024
MAX_THREADS = 8
LIST_TIMEOUT_S = 20.0
_THREAD = re.compile(r"sessions/\d{4}/\d\d/\d\d/rollout-[0-9A-Za-z_-]{1,100}\.jsonl")


@hookimpl
def inspan_harness() -> HarnessSpec:
    """Declare Codex."""
    return HARNESS


@hookimpl
async def inspan_install(context: HarnessContext) -> Mapping[str, Any]:
    """Check, reuse or install the runtime; upload the shim."""
    read_options(context.options)
    read_servers(context.tool_accesses)
    found = await runtime.install(context.installer)
    await upload_shim(context, resources.files("inspan_codex").joinpath(RUNNER).read_text())
    return found


@hookimpl
async def inspan_stage(context: ActivationContext) -> SandboxCommand:
    """Upload the activation's input; the command names only the shim."""
    tools = granted_functions(context.request, HARNESS, context.tool_accesses)
    order = run_order(
        read_request(context.request),
        read_options(context.options),
        thread_id=str(uuid.uuid4()),
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
    """Copy what the shim and Codex left."""
    await collect_shim(context)
    for name in await _threads(context):
        await context.download(name, limit_bytes=THREAD_LIMIT_BYTES, tail=True)


async def _threads(context: CollectContext) -> list[str]:
    """Names of Codex's own records; it chooses them by date and id, so they have to be looked for."""
    home = f"{context.session_dir}/{HOME}"
    try:
        listing = await context.sandbox.exec(
            ["sh", "-c", 'cd "$0" && ls -d sessions/*/*/*/rollout-*.jsonl', home],
            timeout_s=LIST_TIMEOUT_S,
            cwd="/",
            output_limit_bytes=64 * 1024,
        )
    except ExecTimeout:
        # A task can make its folder slow to read; the rest of the evidence counts all the same.
        return []
    lines = listing.stdout.decode("utf-8", "replace").split("\n")
    return [f"{HOME}/{line}" for line in lines if _THREAD.fullmatch(line)][:MAX_THREADS]


@hookimpl
def inspan_parse(run: ParseInput) -> ParsedActivation:
    """Turn the artifacts into a response and observations."""
    return parse.parse(run)
