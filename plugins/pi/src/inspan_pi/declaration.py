"""What the plugin declares, and the checks of its options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from inspan_core.harness import HarnessSpec
from inspan_core.option_checks import complete_options

PI_VERSION = "1.6.0"
THINKING_LEVELS = ("off", "minimal", "low", "medium", "high", "xhigh", "max")
BUILTIN_TOOLS = ("read", "bash", "edit", "write", "grep", "find", "ls")
OTHER_TOOLS = ("powershell", "codemode", "tool_search")
"""Names that Pi 1.6.0 has for tools that are never on here."""

HARNESS = HarnessSpec(
    name="pi",
    version=PI_VERSION,
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
        # Functions of a direct_http grant, beside Pi's own tools; the model chooses freely.
        "tools": "applied",
        "tool_choice": "applied",
        "parallel_tool_calls": "applied",
        "model": "ignored",
    },
    tool_sources=frozenset({"builtin", "direct_http"}),
    builtin_tools=frozenset(BUILTIN_TOOLS),
    options={
        "context_window": 131072,
        "max_output_tokens": 16384,
        "thinking": "off",
        "tools": ["read", "bash", "edit", "write"],
        "system_prompt": "append",
        "context_files": False,
        "max_retries": 3,
        "retry_base_delay_ms": 2000,
    },
    check_options=lambda options: read_options(options),
    summary="The Pi coding agent, with its own Node, over streaming Chat Completions.",
)


@frozen(kw_only=True)
class PiOptions:
    """The plugin's options, checked.

    Attributes:
        context_window: The model's context in tokens; Pi only reports it, since compaction is off.
        max_output_tokens: Tokens that one model call may produce, unless the request says less or more.
        thinking: Pi's thinking level when the request has no ``reasoning.effort``.
        tools: Pi's own tools that the model may use; an empty list means none.
        system_prompt: ``"append"`` the instructions to Pi's own prompt, or ``"replace"`` it by them.
        context_files: Whether AGENTS.md and CLAUDE.md of the task are read.
        max_retries: How often Pi repeats a model call that failed in a way that may pass.
        retry_base_delay_ms: Milliseconds before the first repetition; doubled each time.
    """

    context_window: int
    max_output_tokens: int
    thinking: str
    tools: tuple[str, ...]
    system_prompt: str
    context_files: bool
    max_retries: int
    retry_base_delay_ms: int


def read_options(options: Mapping[str, Any]) -> PiOptions:
    """Check the options; what is not given has its declared default.

    Raises:
        ConfigError: A value does not fit; names the option, the value and what was expected.
    """
    given = complete_options(HARNESS, options)
    given.whole_numbers(
        {"context_window": 1, "max_output_tokens": 1, "max_retries": 0, "retry_base_delay_ms": 0}
    )
    given.one_of("thinking", THINKING_LEVELS)
    given.one_of("system_prompt", ("append", "replace"))
    given.truths("context_files")
    given.list_of("tools", BUILTIN_TOOLS)
    return PiOptions(**{**given.values, "tools": tuple(given.values["tools"])})
