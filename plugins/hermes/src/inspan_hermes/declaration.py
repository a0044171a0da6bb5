"""What the plugin declares, and the checks of its options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from inspan_core.harness import HarnessSpec, SandboxNeeds
from inspan_core.option_checks import complete_options

HERMES_VERSION = "0.19.0"
TOOLSETS = ("terminal", "file")
BUILTIN_TOOLS = ("patch", "process", "read_file", "search_files", "terminal", "write_file")
# Below this Hermes 0.19.0 refuses to start: its own prompt and tools need the room.
LEAST_CONTEXT_TOKENS = 64_000

HARNESS = HarnessSpec(
    name="hermes",
    version=HERMES_VERSION,
    model_api="chat_completions",
    level=3,
    request_fields={
        "input": "applied",
        "instructions": "applied",
        "metadata": "applied",
        "max_output_tokens": "applied",
        "temperature": "applied",
        "top_p": "applied",
        "reasoning": "applied",
        # Functions of a direct_http grant, beside Hermes' own tools; the model chooses freely.
        "tools": "applied",
        "tool_choice": "applied",
        "parallel_tool_calls": "applied",
        "model": "ignored",
    },
    tool_sources=frozenset({"builtin", "mcp", "direct_http"}),
    builtin_tools=frozenset((*BUILTIN_TOOLS, *TOOLSETS)),
    options={
        "context_length": 131072,
        "max_output_tokens": 0,
        "max_turns": 90,
        "max_retries": 2,
        "compaction": True,
        "compaction_threshold": 0.5,
        "command_timeout_s": 180,
        "context_files": False,
    },
    check_options=lambda options: read_options(options),
    needs=SandboxNeeds(programs=("bash",)),
    summary="Nous Research's Hermes agent, driven in process, over streaming Chat Completions.",
)


@frozen(kw_only=True)
class HermesOptions:
    """The plugin's options, checked.

    Attributes:
        context_length: The model's context in tokens; Hermes plans its compactions by it.
        max_output_tokens: Tokens that one model call may produce when the request does not say; 0: the
            model server's own limit.
        max_turns: Model calls of one run, then Hermes asks for a summary without tools.
        max_retries: How often Hermes repeats a model call that failed in a way that may pass.
        compaction: Whether Hermes has the model summarise the conversation when it grows long.
        compaction_threshold: The share of `context_length` at which it does.
        command_timeout_s: Seconds that a command of the terminal may take when the model does not say.
        context_files: Whether AGENTS.md and the like of the task are read.
    """

    context_length: int
    max_output_tokens: int
    max_turns: int
    max_retries: int
    compaction: bool
    compaction_threshold: float
    command_timeout_s: int
    context_files: bool


def read_options(options: Mapping[str, Any]) -> HermesOptions:
    """Check the options; what is not given has its declared default.

    Raises:
        ConfigError: A value does not fit; names the option, the value and what was expected.
    """
    given = complete_options(HARNESS, options)
    given.whole_numbers(
        {
            "context_length": LEAST_CONTEXT_TOKENS,
            "max_output_tokens": 0,
            "max_turns": 1,
            "max_retries": 0,
            "command_timeout_s": 1,
        }
    )
    given.truths("compaction", "context_files")
    given.number("compaction_threshold", 0.1, 0.95)
    return HermesOptions(**given.values)
