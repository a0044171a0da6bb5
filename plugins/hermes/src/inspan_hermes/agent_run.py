"""One conversation of Hermes' agent, with its settings checked; travels into the sandbox beside the runner.

Events (`Trace.say`), beside those of `inspan_hermes.model_calls`::

    ready                 version, tools, session_id
    tool_server.skipped   name, error: an optional server that could not be connected
    tool.started          id, name, arguments
    tool.completed        id, name, result
    compaction.started    messages, tokens
    compaction.ended      messages, outcome, error
    status                kind, text
    ended                 messages: what of the conversation no request has shown
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
from typing import Any

from inspan_core import shim, tool_bridge
from inspan_hermes.model_calls import ModelCalls, Trace

STATUS_LIMIT_CHARS = 4096
# The toolset of the request's own functions.
GRANTED = "granted"
# What of Hermes' result is kept beside the trace.
RESULT_KEYS = (
    "final_response",
    "completed",
    "failed",
    "partial",
    "interrupted",
    "error",
    "failure_reason",
    "turn_exit_reason",
    "compression_exhausted",
    "api_calls",
    "session_id",
)


# In this order: what asks the model server what it is must be replaced before others have taken it.
MODULES = (
    "agent.model_metadata",
    "run_agent",
    "tools.environments.local",
    "tools.mcp_tool",
    "hermes_constants",
)
# Requests that are no model calls, for what the configuration says: each with what it finds out.
QUESTIONS: dict[str, dict[str, Any]] = {
    "agent.model_metadata": {
        "detect_local_server_type": None,
        "fetch_endpoint_model_metadata": {},
        "fetch_model_metadata": {},
        "query_ollama_num_ctx": None,
        "query_ollama_supports_vision": None,
        "_query_ollama_api_show": None,
        "_query_local_context_length": None,
    }
}


class NotReady(RuntimeError):
    """A setting is not in force, or a required tool server is not there: the model is not asked."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def replace(place: Any, name: str, value: Any) -> None:
    """Put something in the place of what Hermes has there.

    Raises:
        NotReady: It has nothing of that name: not the version that this was made for.
    """
    if not hasattr(place, name):
        where = getattr(place, "__name__", type(place).__name__)
        raise NotReady("settings_not_in_force", f"Hermes has no {where}.{name}")
    setattr(place, name, value)


class AgentRun:
    """A run of one order.

    Args:
        order: ``site``, ``version``, ``workdir``, ``env``, ``config``, ``agent``, ``asked``,
            ``servers``, ``tool_bridge``, ``tools``, ``prompt``, ``history``.
        folder: The session folder.
        trace: Receives the events.
    """

    def __init__(self, order: dict[str, Any], folder: str, trace: Trace) -> None:
        self.order = order
        self.folder = folder
        self.trace = trace
        self.calls = ModelCalls(trace, order["asked"])
        self.agent: Any = None
        self.stopped = False
        self.lock = threading.Lock()

    def interrupt(self) -> bool:
        """Have the agent end its call or tool, and then itself; whether there was one to tell."""
        with self.lock:
            self.stopped = True
            agent = self.agent
        if agent is not None:
            agent.interrupt()
        return agent is not None

    def prepare(self) -> None:
        """Load Hermes, connect the tool servers, make the agent, and check what is in force.

        Raises:
            NotReady: The run cannot be what was asked for.
        """
        home = self.order["env"]["HERMES_HOME"]
        for path in (home, os.path.join(self.folder, "tmp")):
            os.makedirs(path, 0o700, exist_ok=True)
        shim.write_atomically(os.path.join(home, "config.yaml"), self.order["config"])
        os.chdir(self.order["workdir"])
        given = dict(os.environ)
        os.environ.update(self.order["env"])
        sys.path.insert(0, self.order["site"])
        for name in MODULES:
            try:
                module = importlib.import_module(name)
            except Exception as error:
                raise NotReady("runtime_broken", f"{name} does not load: {error}") from error
            for question, answer in QUESTIONS.get(name, {}).items():
                replace(module, question, lambda *_, _answer=answer, **__: _answer)
        self._keep_task_environment(given)
        completions = importlib.import_module("openai.resources.chat.completions")
        self.calls.watch(completions.Completions)
        names = self._connect()
        if self.order["tool_bridge"]:
            self._register(self.order["tool_bridge"])
            names.append(GRANTED)
        agent = self._agent(names)
        # What loading Hermes has added is none of the task's either.
        self._keep_task_environment(given)
        self._check(agent, names)
        with self.lock:
            self.agent = agent
            if self.stopped:
                raise NotReady("stopped", "the run was stopped before the model was asked")

    def _keep_task_environment(self, given: dict[str, str]) -> None:
        """Tools get the task's own variables: none of this run's, none withheld by Hermes."""
        local = importlib.import_module("tools.environments.local")
        constants = importlib.import_module("hermes_constants")
        temporary = os.path.join(self.folder, "tmp")
        changes = [
            (local, "_HERMES_PROVIDER_ENV_BLOCKLIST", frozenset(set(os.environ) - set(given))),
            (local, "_ACTIVE_VENV_MARKER_VARS", ()),
            (local, "_inject_session_context_env", lambda env: None),
            (local.LocalEnvironment, "get_temp_dir", lambda environment: temporary),
            (constants, "apply_subprocess_home_env", lambda env: None),
        ]
        for place, name, value in changes:
            replace(place, name, value)

    def _connect(self) -> list[str]:
        """Connect the granted servers; their toolsets, those of optional ones that fail left out."""
        servers = self.order["servers"]
        if not servers:
            return []
        mcp = importlib.import_module("tools.mcp_tool")
        mcp.register_mcp_servers({name: server["config"] for name, server in servers.items()})
        connected = []
        for name, server in servers.items():
            task = mcp._servers.get(name)
            tools = list(getattr(task, "_registered_tool_names", ()) or ())
            error = mcp._server_connect_errors.get(name)
            if task is not None and task.session is not None and tools:
                connected.append(f"mcp-{name}")
                continue
            what = "it offers no tools" if task is not None and task.session is not None else error
            message = f"tool server {name!r} could not be connected: {what or 'no reason given'}"
            if server["required"]:
                raise NotReady("tool_server_unavailable", message)
            self.trace.say("tool_server.skipped", name=name, error=message[:STATUS_LIMIT_CHARS])
        return connected

    def _register(self, bridge: dict[str, Any]) -> None:
        """The request's functions as tools of Hermes' own kind, called from this process."""
        jar = tool_bridge.Jar(bridge["cookies"], os.path.join(self.folder, tool_bridge.JAR))
        server = tool_bridge.ToolServer(bridge, jar)
        registry = importlib.import_module("tools.registry").registry

        def handler(name: str) -> Any:
            def call(arguments: Any, **_: Any) -> str:
                text, is_error = server.call(name, arguments)
                return json.dumps({"error": text}) if is_error else text

            return call

        for tool in bridge["tools"]:
            registry.register(name=tool["name"], toolset=GRANTED, schema=tool, handler=handler(tool["name"]))

    def _agent(self, toolsets: list[str]) -> Any:
        say = self.trace.say
        module = importlib.import_module("run_agent")
        agent = module.AIAgent(
            **self.order["agent"],
            enabled_toolsets=[*self.order["toolsets"], *toolsets],
            quiet_mode=True,
            tool_start_callback=lambda call, name, arguments: say(
                "tool.started", id=call, name=name, arguments=arguments
            ),
            tool_complete_callback=lambda call, name, arguments, result: say(
                "tool.completed", id=call, name=name, result=result
            ),
            status_callback=lambda kind, text="": say(
                "status", kind=str(kind), text=str(text)[:STATUS_LIMIT_CHARS]
            ),
        )
        for name in ("_compress_context", "_handle_max_iterations", "interrupt", "valid_tool_names"):
            if not hasattr(agent, name):
                raise NotReady("settings_not_in_force", f"Hermes' agent has no {name}")
        self._watch(agent)
        return agent

    def _watch(self, agent: Any) -> None:
        """Know which model calls belong to a compaction, and which to the end of the turns."""
        compress, finish = agent._compress_context, agent._handle_max_iterations

        def compressed(messages: Any, *args: Any, **more: Any) -> Any:
            before = json.dumps(messages, default=str)
            self.trace.say("compaction.started", messages=len(messages), tokens=more.get("approx_tokens"))
            self.calls.purpose, outer = "compaction", self.calls.purpose
            told = {"outcome": "failed", "messages": None, "error": None}  # type: dict[str, Any]
            try:
                result = compress(messages, *args, **more)
                changed = json.dumps(result[0], default=str) != before
                told = {"outcome": "completed" if changed else "aborted", "messages": len(result[0])}
                return result
            except BaseException as error:
                told["error"] = f"{type(error).__name__}: {str(error)[:STATUS_LIMIT_CHARS]}"
                raise
            finally:
                self.calls.purpose = outer
                self.trace.say("compaction.ended", **told)

        def finished(*args: Any, **more: Any) -> Any:
            self.calls.purpose, outer = "limit", self.calls.purpose
            try:
                return finish(*args, **more)
            finally:
                self.calls.purpose = outer

        agent._compress_context, agent._handle_max_iterations = compressed, finished

    def _check(self, agent: Any, toolsets: list[str]) -> None:
        """Find every setting in force, or do not begin; ``ready.json`` is the receipt."""
        order = self.order
        version = importlib.import_module("hermes_cli").__version__
        home = str(importlib.import_module("hermes_constants").get_hermes_home())
        tools = sorted(agent.valid_tool_names)
        functions = [tool["name"] for tool in (order["tool_bridge"] or {"tools": []})["tools"]]
        served = [name for name in tools if name.startswith("mcp__") and name not in functions]
        facts = [
            ("version", version, order["version"]),
            ("HERMES_HOME", home, order["env"]["HERMES_HOME"]),
            ("tools", [name for name in tools if name not in served], sorted([*order["tools"], *functions])),
            ("tools of servers", bool(served), any(name != GRANTED for name in toolsets)),
            ("max_tokens", agent.max_tokens, order["agent"]["max_tokens"]),
            ("max_iterations", agent.max_iterations, order["agent"]["max_iterations"]),
            ("base_url", agent.base_url, order["agent"]["base_url"]),
            ("model", agent.model, order["agent"]["model"]),
            ("context_length", agent.context_compressor.context_length, order["context_length"]),
        ]
        for name, found, wanted in facts:
            if found != wanted:
                message = f"{name} is {found!r}, wanted {wanted!r}"
                raise NotReady("settings_not_in_force", message)
        ready = {"version": version, "tools": tools, "session_id": agent.session_id}
        shim.write_atomically(os.path.join(self.folder, "ready.json"), ready)
        if functions:
            shim.write_atomically(os.path.join(self.folder, tool_bridge.READY), {"tools": functions})
        self.trace.say("ready", **ready)

    def converse(self) -> dict[str, Any]:
        """The conversation; returns what Hermes says of its end."""
        result = self.agent.run_conversation(
            self.order["prompt"], conversation_history=self.order["history"] or None
        )
        # A request's conversation begins with the system prompt, the result's does not.
        shown = max(0, len(self.calls.seen) - 1)
        self.trace.say("ended", messages=(result.get("messages") or [])[shown:])
        return {key: result.get(key) for key in RESULT_KEYS}

    def leave(self) -> None:
        """Let go of the tool servers."""
        if self.order["servers"] and "tools.mcp_tool" in sys.modules:
            sys.modules["tools.mcp_tool"].shutdown_mcp_servers()
