"""What the shim is ordered: Hermes' configuration, environment and arguments, all of it in one file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inspan_core.function_tools import FunctionTool, bridge_order
from inspan_core.wire import DirectHttpAccess, McpAccess
from inspan_hermes.declaration import BUILTIN_TOOLS, HERMES_VERSION, TOOLSETS, HermesOptions
from inspan_hermes.request import HermesRequest

HOME = "home"
# Hermes ends a silent model call by itself after this; the run's own deadline comes first.
MODEL_TIMEOUT_MARGIN_S = 600.0
MCP_CONNECT_TIMEOUT_S = 30


def run_order(
    request: HermesRequest,
    options: HermesOptions,
    *,
    prefix: str,
    session_dir: str,
    workdir: str,
    model_base_url: str,
    model_name: str,
    model_key: str,
    run_timeout_s: float,
    servers: Sequence[McpAccess] = (),
    tools: tuple[DirectHttpAccess, Sequence[FunctionTool]] | None = None,
) -> dict[str, Any]:
    """The content of ``input.json``.

    Args:
        tools: The request's functions with the grant that they are called by, or None: there are none.
    """
    patience_s = run_timeout_s + MODEL_TIMEOUT_MARGIN_S
    return {
        "version": HERMES_VERSION,
        "site": f"{prefix}/site",
        "workdir": workdir,
        "env": _environment(options, f"{session_dir}/{HOME}", workdir, patience_s),
        "config": _config(options, workdir, model_name, patience_s),
        "toolsets": list(TOOLSETS),
        "tools": list(BUILTIN_TOOLS),
        "context_length": options.context_length,
        "agent": {
            "base_url": model_base_url,
            "api_key": model_key,
            "model": model_name,
            "provider": "custom",
            "api_mode": "chat_completions",
            "max_iterations": options.max_turns,
            "max_tokens": request.max_output_tokens,
            "reasoning_config": _reasoning(request.effort),
            "request_overrides": dict(request.sampling),
            "ephemeral_system_prompt": request.system,
            "skip_context_files": not options.context_files,
            "skip_memory": True,
        },
        "asked": _asked(request),
        "servers": {server.name: _server(server, patience_s) for server in servers},
        "tool_bridge": None if tools is None else _bridge(*tools, patience_s),
        "prompt": request.prompt,
        "history": [dict(message) for message in request.history],
    }


def _asked(request: HermesRequest) -> dict[str, Any]:
    """What each model request must carry; without it, it is not made."""
    asked: dict[str, Any] = dict(request.sampling)
    if request.max_output_tokens is not None:
        asked["max_tokens"] = request.max_output_tokens
    if request.effort is not None:
        asked["reasoning_effort"] = request.effort
    return asked


def _reasoning(effort: str | None) -> dict[str, Any] | None:
    if effort is None:
        return None
    return {"enabled": False} if effort == "none" else {"enabled": True, "effort": effort}


def _environment(options: HermesOptions, home: str, workdir: str, patience_s: float) -> dict[str, str]:
    """Variables of Hermes' own process; its tools do not get them."""
    seconds = str(int(patience_s))
    return {
        "HERMES_HOME": home,
        "HERMES_YOLO_MODE": "1",
        "HERMES_DISABLE_LAZY_INSTALLS": "1",
        "HERMES_API_TIMEOUT": seconds,
        "HERMES_STREAM_READ_TIMEOUT": seconds,
        "HERMES_STREAM_STALE_TIMEOUT": seconds,
        "HERMES_LOCAL_STREAM_STALE_TIMEOUT": seconds,
        "HERMES_API_CALL_STALE_TIMEOUT": seconds,
        # One layer of repetitions is enough: `max_retries` of the agent's loop.
        "HERMES_STREAM_RETRIES": "0",
        "TERMINAL_ENV": "local",
        "TERMINAL_CWD": workdir,
        "TERMINAL_TIMEOUT": str(options.command_timeout_s),
        "TERMINAL_HOME_MODE": "real",
        "TIRITH_ENABLED": "0",
    }


def _config(options: HermesOptions, workdir: str, model_name: str, patience_s: float) -> dict[str, Any]:
    """``config.yaml`` of the private home: nothing of the network, nothing secret, nothing of the task's."""
    return {
        "model": {
            "default": model_name,
            "provider": "custom",
            "context_length": options.context_length,
        },
        "agent": {
            "max_turns": options.max_turns,
            "api_max_retries": options.max_retries + 1,
            "local_stream_stale_timeout": patience_s,
        },
        "terminal": {
            "backend": "local",
            "cwd": workdir,
            "timeout": options.command_timeout_s,
            "home_mode": "real",
        },
        "compression": {"enabled": options.compaction, "threshold": options.compaction_threshold},
        "auxiliary": {
            "compression": {"timeout": patience_s},
            "title_generation": {"enabled": False},
        },
        "tools": {"tool_search": {"enabled": "off"}},
        # What a file says must reach the model as it is; and the sandbox is the guard.
        "security": {"redact_secrets": False, "tirith_enabled": False, "allow_lazy_installs": False},
        "approvals": {"mode": "off"},
        "lsp": {"enabled": False},
        "checkpoints": {"enabled": False},
        "memory": {"memory_enabled": False, "user_profile_enabled": False},
    }


def _server(server: McpAccess, patience_s: float) -> dict[str, Any]:
    config: Mapping[str, Any] = {
        "url": server.connection.url,
        "headers": dict(server.connection.headers),
        "timeout": patience_s,
        "connect_timeout": MCP_CONNECT_TIMEOUT_S,
        "skip_preflight": True,
        # A server could otherwise have the model asked, or a user, outside the agent's loop.
        "sampling": {"enabled": False},
        "elicitation": {"enabled": False},
    }
    return {"required": server.required, "config": config}


def _bridge(grant: DirectHttpAccess, functions: Sequence[FunctionTool], patience_s: float) -> dict[str, Any]:
    """The shim calls the functions itself: nobody has to show it a token, and no URL has to be written."""
    return bridge_order(grant, functions, token="", url_mark="", timeout_s=patience_s, fetched_is_ready=False)
