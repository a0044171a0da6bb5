"""What the shim writes for Codex, and how Codex is started: all of it in files, nothing telling in argv."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from inspan_codex.declaration import CODEX_VERSION, CodexOptions
from inspan_codex.request import CodexRequest
from inspan_codex.runtime import PROGRAM
from inspan_codex.servers import server_name
from inspan_codex.toml_text import to_toml
from inspan_core.function_tools import FunctionTool, bridge_order
from inspan_core.wire import DirectHttpAccess, McpAccess

PROVIDER = "inspan"
HOME = "home"
NEUTRAL_NAME = "inspan-h"
# Codex ends a silent model call by itself after this; the run's own deadline comes first.
MODEL_TIMEOUT_MARGIN_S = 600.0
MCP_CONNECT_TIMEOUT_S = 30
CONTEXT_FILES_LIMIT_BYTES = 32 * 1024
# The most that 0.171.0 takes for a model that it does not know (measured); it compacts by itself at nine
# tenths of the window, so this is as late as can be.
LARGEST_WINDOW_TOKENS = 272_000
# A day of long ago, so that the record of earlier turns has a name that is known beforehand.
PAST = "2000-01-01T00:00:00.000Z"
PAST_FOLDER = f"{HOME}/sessions/2000/01/01"
# Where nobody can be asked, 0.171.0 refuses `rm -f` and its like ("rm -f style commands are not permitted"),
# without any sandbox of its own too. A rule for a command's first word, or for the shell around a script that
# Codex does not take apart, comes before that.
RULES_FILE = f"{HOME}/rules/default.rules"
ALLOWED_PROGRAMS = [
    f"{folder}{name}"
    for name in ("rm", "sudo", "env", "busybox", "bash", "sh", "zsh", "dash", "ash")
    for folder in ("", "/bin/", "/usr/bin/", "/usr/local/bin/")
]
RULES = f'prefix_rule(pattern = [{json.dumps(ALLOWED_PROGRAMS)}], decision = "allow")\n'


def run_order(
    request: CodexRequest,
    options: CodexOptions,
    *,
    thread_id: str,
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
    """The content of ``input.json``: files for the session folder, command, environment, prompt.

    Args:
        tools: The request's functions with the grant that they are called by, or None: there are none.
    """
    home = f"{session_dir}/{HOME}"
    config = _config(options, model_base_url, model_name, model_key, run_timeout_s)
    connected = {server.name: _mcp_server(server, run_timeout_s) for server in servers}
    bridge = None if tools is None else _bridge(*tools, run_timeout_s)
    if tools is not None and bridge is not None:
        connected[server_name(tools[0], connected)] = _bridged(bridge, run_timeout_s)
    if connected:
        config["mcp_servers"] = connected
    files = {RULES_FILE: RULES}
    history = list(request.history)
    if request.instructions is not None and options.system_prompt == "replace":
        config["model_instructions_file"] = f"{home}/instructions.md"
        files[f"{HOME}/instructions.md"] = request.instructions
    elif request.instructions is not None and not history:
        config["developer_instructions"] = request.instructions
    elif request.instructions is not None:
        # With a history Codex would put them after it.
        part = {"type": "input_text", "text": request.instructions}
        history.insert(0, {"type": "message", "role": "developer", "content": [part]})
    argv = [NEUTRAL_NAME, "exec"]
    flags = ["--json", "--skip-git-repo-check", "--strict-config"]
    if history:
        name = f"{PAST_FOLDER}/rollout-2000-01-01T00-00-00-{thread_id}.jsonl"
        files[name] = _past_thread(history, thread_id, workdir)
        argv += ["resume", *flags, thread_id, "-"]
    else:
        argv += [*flags, "-"]
    files[f"{HOME}/config.toml"] = to_toml(config)
    return {
        "tool_bridge": bridge,
        # Codex has read it when the turn starts.
        "loaded": [f"{HOME}/config.toml"],
        "argv": argv,
        "program": f"{prefix}/{PROGRAM}",
        "env": {"CODEX_HOME": home, "CODEX_SQLITE_HOME": home},
        "workdir": workdir,
        "files": files,
        "prompt": request.prompt,
    }


def _config(
    options: CodexOptions, base_url: str, model_name: str, model_key: str, run_timeout_s: float
) -> dict[str, Any]:
    """``config.toml``: one model server, no account, no network of its own, nothing of the task's."""
    return {
        "model": model_name,
        "model_provider": PROVIDER,
        "model_context_window": LARGEST_WINDOW_TOKENS,
        "model_auto_compact_token_limit": options.compaction_at_tokens or LARGEST_WINDOW_TOKENS,
        "model_reasoning_summary": "none",
        # The sandbox is ours; Codex's own would forbid what the task needs.
        "approval_policy": "never",
        "sandbox_mode": "danger-full-access",
        "check_for_update_on_startup": False,
        "web_search": "disabled",
        "cli_auth_credentials_store": "file",
        "allow_login_shell": False,
        "include_environment_context": False,
        "include_permissions_instructions": False,
        "include_apps_instructions": False,
        "project_doc_max_bytes": CONTEXT_FILES_LIMIT_BYTES if options.context_files else 0,
        "model_providers": {
            PROVIDER: {
                "name": PROVIDER,
                "base_url": base_url,
                "wire_api": "responses",
                # Not by an environment variable: tools inherit those.
                "experimental_bearer_token": model_key,
                "requires_openai_auth": False,
                "supports_websockets": False,
                # Two layers of repetition would multiply; this one knows more kinds of failure.
                "request_max_retries": 0,
                "stream_max_retries": options.max_retries,
                "stream_idle_timeout_ms": int((run_timeout_s + MODEL_TIMEOUT_MARGIN_S) * 1000),
            }
        },
        "features": {
            # The first two look up names on the network; the third repeats a refused connection for ever.
            "plugins": False,
            "apps": False,
            "unbounded_connection_retries": False,
            "goals": False,
            "shell_snapshot": False,
        },
        "agents": {"enabled": False},
        "skills": {"include_instructions": False, "bundled": {"enabled": False}},
        "shell_environment_policy": {
            "inherit": "all",
            "ignore_default_excludes": True,
            "exclude": ["CODEX_HOME", "CODEX_SQLITE_HOME"],
        },
        "analytics": {"enabled": False},
        "feedback": {"enabled": False},
        "otel": {"exporter": "none"},
        "history": {"persistence": "none"},
    }


def _mcp_server(server: McpAccess, run_timeout_s: float) -> dict[str, Any]:
    return {
        "url": server.connection.url,
        "http_headers": dict(server.connection.headers),
        "startup_timeout_sec": MCP_CONNECT_TIMEOUT_S,
        "tool_timeout_sec": int(run_timeout_s + MODEL_TIMEOUT_MARGIN_S),
        # Without its server the run ends before the first model call.
        "required": server.required,
    }


def _bridge(
    grant: DirectHttpAccess, functions: Sequence[FunctionTool], run_timeout_s: float
) -> dict[str, Any]:
    return bridge_order(
        grant,
        functions,
        token=uuid.uuid4().hex,
        url_mark=f"bridge-{uuid.uuid4().hex}",
        timeout_s=run_timeout_s + MODEL_TIMEOUT_MARGIN_S,
        fetched_is_ready=True,
    )


def _bridged(order: Mapping[str, Any], run_timeout_s: float) -> dict[str, Any]:
    """The shim's bridge as one of Codex's MCP servers."""
    return {
        "url": order["url_mark"],
        "http_headers": {"Authorization": f"Bearer {order['token']}"},
        "startup_timeout_sec": MCP_CONNECT_TIMEOUT_S,
        "tool_timeout_sec": int(run_timeout_s + MODEL_TIMEOUT_MARGIN_S),
        "required": True,
    }


def _past_thread(history: list[Mapping[str, Any]], thread_id: str, workdir: str) -> str:
    """A record of a session (format of Codex 0.171.0) that Codex continues."""
    meta = {
        "id": thread_id,
        "session_id": thread_id,
        "timestamp": PAST,
        "cwd": workdir,
        "originator": "codex_exec",
        "cli_version": CODEX_VERSION,
        "source": "exec",
        "model_provider": PROVIDER,
    }
    lines = [{"timestamp": PAST, "type": "session_meta", "payload": meta}]
    lines += [{"timestamp": PAST, "type": "response_item", "payload": dict(item)} for item in history]
    return "".join(json.dumps(line) + "\n" for line in lines)
