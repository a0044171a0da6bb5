"""What the plugin declares, and the checks of its options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from inspan_core.harness import HarnessSpec
from inspan_core.option_checks import complete_options

CODEX_VERSION = "0.171.0"
BUILTIN_TOOLS = (
    "exec_command",
    "write_stdin",
    "request_user_input",
    "view_image",
    "apply_patch",
    "update_plan",
    "list_mcp_resources",
    "list_mcp_resource_templates",
    "read_mcp_resource",
)

HARNESS = HarnessSpec(
    name="codex",
    version=CODEX_VERSION,
    model_api="responses",
    level=3,
    request_fields={
        "input": "applied",
        "instructions": "applied",
        "metadata": "applied",
        # Functions of a direct_http grant, beside Codex's own tools; the model chooses freely.
        "tools": "applied",
        "tool_choice": "applied",
        "parallel_tool_calls": "applied",
        "model": "ignored",
        # Codex has no way to send them to a provider of one's own.
        "max_output_tokens": "refused",
        "temperature": "refused",
        "top_p": "refused",
        "reasoning": "refused",
    },
    tool_sources=frozenset({"builtin", "mcp", "direct_http"}),
    builtin_tools=frozenset(BUILTIN_TOOLS),
    options={
        "compaction_at_tokens": 0,
        "system_prompt": "append",
        "context_files": False,
        "max_retries": 3,
    },
    check_options=lambda options: read_options(options),
    summary="OpenAI's Codex, one static binary, over streaming Responses.",
)


@frozen(kw_only=True)
class CodexOptions:
    """The plugin's options, checked.

    Attributes:
        compaction_at_tokens: Tokens of context at which Codex has the model summarise the conversation
            and goes on from there; 0: as late as Codex lets it be, at about 244,000.
        system_prompt: ``"append"`` the instructions to Codex's own prompt, or ``"replace"`` it by them.
        context_files: Whether AGENTS.md of the task is read.
        max_retries: How often Codex repeats a model call that failed in a way that may pass; 429 never.
    """

    compaction_at_tokens: int
    system_prompt: str
    context_files: bool
    max_retries: int


def read_options(options: Mapping[str, Any]) -> CodexOptions:
    """Check the options; what is not given has its declared default.

    Raises:
        ConfigError: A value does not fit; names the option, the value and what was expected.
    """
    given = complete_options(HARNESS, options)
    given.whole_numbers({"compaction_at_tokens": 0, "max_retries": 0})
    given.one_of("system_prompt", ("append", "replace"))
    given.truths("context_files")
    return CodexOptions(**given.values)
