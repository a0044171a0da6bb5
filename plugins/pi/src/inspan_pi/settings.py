"""What the shim writes for Pi, and how Pi is started: all of it in files, nothing telling in argv."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from inspan_core.function_tools import READY, FunctionTool, bridge_order
from inspan_core.wire import DirectHttpAccess
from inspan_pi.declaration import PiOptions
from inspan_pi.request import PiRequest

PROVIDER = "inspan"
HISTORY_PREFIX = "past-"
EXTENSION = "tools.mjs"
# Pi ends a silent model call by itself after this; the run's own deadline comes first.
MODEL_TIMEOUT_MARGIN_S = 600.0


def run_order(
    request: PiRequest,
    options: PiOptions,
    *,
    session_id: str,
    prefix: str,
    session_dir: str,
    workdir: str,
    model_base_url: str,
    model_name: str,
    model_key: str,
    run_timeout_s: float,
    tools: tuple[DirectHttpAccess, Sequence[FunctionTool]] | None = None,
) -> dict[str, Any]:
    """The content of ``input.json``: files for the session folder, command, environment, prompt.

    Args:
        tools: The request's functions with the grant that they are called by, or None: there are none.
    """
    agent = f"{session_dir}/agent"
    files = {
        "agent/models.json": json.dumps(_models(request, options, model_base_url, model_name, model_key)),
        "agent/settings.json": json.dumps(_settings(request, options, model_name, run_timeout_s)),
        "session.jsonl": _session(session_id, request.history, workdir, model_name),
    }
    if request.system is not None:
        name = "SYSTEM.md" if options.system_prompt == "replace" else "APPEND_SYSTEM.md"
        files[f"agent/{name}"] = request.system
    argv = [f"{prefix}/bin/node", f"{prefix}/start.mjs", "--mode", "json", "--print"]
    argv += ["--session", f"{session_dir}/session.jsonl"]
    # Nothing of the task configures the harness: no extensions, skills, templates, themes, MCP, .pi folder.
    argv += ["-ne", "-ns", "-np", "--no-themes", "--no-mcp", "-na"]
    if not options.context_files:
        argv.append("-nc")
    bridge = None
    if tools is not None:
        bridge = _bridge(*tools, session_dir, run_timeout_s, files)
        argv += ["-e", f"{session_dir}/{EXTENSION}"]
    return {
        "tool_bridge": bridge,
        # Pi has read them when the agent starts; tools.json is deleted by the extension.
        "loaded": ["agent/models.json"],
        "argv": argv,
        "env": {
            "PI_CODING_AGENT_DIR": agent,
            "PI_OFFLINE": "1",
            "PI_TELEMETRY": "0",
            "PI_SKIP_VERSION_CHECK": "1",
        },
        "workdir": workdir,
        "files": files,
        "prompt": request.prompt,
    }


def _bridge(
    grant: DirectHttpAccess,
    functions: Sequence[FunctionTool],
    session_dir: str,
    run_timeout_s: float,
    files: dict[str, str],
) -> dict[str, Any]:
    """The shim's order for the tools; adds the extension and its settings to `files`."""
    token, mark = uuid.uuid4().hex, f"bridge-{uuid.uuid4().hex}"
    names = [function.name for function in functions]
    settings = {"url": mark, "token": token, "tools": names, "ready": f"{session_dir}/{READY}"}
    files[EXTENSION] = resources.files("inspan_pi").joinpath("tools.mjs").read_text(encoding="utf-8")
    files["tools.json"] = json.dumps(settings)
    return bridge_order(
        grant,
        functions,
        token=token,
        url_mark=mark,
        timeout_s=run_timeout_s + MODEL_TIMEOUT_MARGIN_S,
        fetched_is_ready=False,
    )


def _models(
    request: PiRequest, options: PiOptions, base_url: str, model_name: str, key: str
) -> dict[str, Any]:
    reasons = request.thinking != "off"
    model: dict[str, Any] = {
        "id": model_name,
        "reasoning": reasons,
        "input": ["text"],
        "contextWindow": options.context_window,
        "maxTokens": request.max_output_tokens,
    }
    if request.sampling:
        model["samplingParams"] = dict(request.sampling)
    provider = {
        "baseUrl": base_url,
        "api": "openai-completions",
        "apiKey": literal(key),
        "compat": {
            "supportsDeveloperRole": False,
            "supportsReasoningEffort": reasons,
            "supportsStore": False,
            "maxTokensField": "max_tokens",
        },
        "models": [model],
    }
    return {"providers": {PROVIDER: provider}}


def literal(text: str) -> str:
    """`text` as Pi's configuration takes it literally: ``$NAME`` and a leading ``!`` mean other things."""
    escaped = text.replace("$", "$$")
    return "$" + escaped if escaped.startswith("!") else escaped


def _settings(
    request: PiRequest, options: PiOptions, model_name: str, run_timeout_s: float
) -> dict[str, Any]:
    return {
        "defaultProvider": PROVIDER,
        "defaultModel": model_name,
        "defaultThinkingLevel": request.thinking,
        "defaultTools": list(options.tools),
        "enableInstallTelemetry": False,
        # Both would call the model on their own.
        "compaction": {"enabled": False},
        "cacheWarming": "off",
        "httpIdleTimeoutMs": "disabled",
        "retry": {
            "enabled": options.max_retries > 0,
            "maxRetries": options.max_retries,
            "baseDelayMs": options.retry_base_delay_ms,
            "provider": {
                "maxRetries": 0,
                "timeoutMs": int((run_timeout_s + MODEL_TIMEOUT_MARGIN_S) * 1000),
            },
        },
    }


def _session(session_id: str, history: tuple[Mapping[str, Any], ...], workdir: str, model_name: str) -> str:
    """A session file (format version 3 of Pi 1.6.0) that Pi continues."""
    stamp = "1970-01-01T00:00:00.000Z"
    lines: list[dict[str, Any]] = [
        {
            "type": "session",
            "version": 3,
            "id": session_id,
            "timestamp": stamp,
            "cwd": workdir,
        }
    ]
    parent = None
    for index, message in enumerate(history):
        entry_id = f"{HISTORY_PREFIX}{index:04d}"
        full = {**message, "timestamp": index + 1}
        if message["role"] == "assistant":
            full |= {"api": "openai-completions", "provider": PROVIDER, "model": model_name, "usage": _UNUSED}
        lines.append(
            {"type": "message", "id": entry_id, "parentId": parent, "timestamp": stamp, "message": full}
        )
        parent = entry_id
    return "".join(json.dumps(line) + "\n" for line in lines)


_UNUSED = {
    "input": 0,
    "output": 0,
    "cacheRead": 0,
    "cacheWrite": 0,
    "totalTokens": 0,
    "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0, "total": 0},
}
