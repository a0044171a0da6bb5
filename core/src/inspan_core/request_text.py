"""What plugins read of a Responses request alike: pure; what a program cannot take is refused by name."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from inspan_core.errors import RequestRefused
from inspan_core.json_shapes import is_object, is_sequence

SYSTEM_ROLES = ("system", "developer")


def refuse_choices(request: Mapping[str, Any], harness: str) -> None:
    """Refuse what says how the model must use tools, for programs that leave it to the model.

    Args:
        harness: The harness's name, for messages; as in all functions here.

    Raises:
        RequestRefused: ``tool_choice`` is not ``"auto"``, or ``parallel_tool_calls`` not true.
    """
    if request.get("tool_choice") not in (None, "auto"):
        raise RequestRefused(
            f"{harness} lets the model choose: `tool_choice` must be 'auto', not {request['tool_choice']!r}",
            field="tool_choice",
        )
    if request.get("parallel_tool_calls") not in (None, True):
        raise RequestRefused(
            f"{harness} cannot forbid several tool calls in one answer: `parallel_tool_calls` must be true",
            field="parallel_tool_calls",
        )


def instructions_of(request: Mapping[str, Any], harness: str) -> list[str]:
    """The request's instructions: one text or none.

    Raises:
        RequestRefused: They are no text.
    """
    given = request.get("instructions")
    if given is None:
        return []
    if not isinstance(given, str):
        raise RequestRefused(f"`instructions` must be a string for {harness}", field="instructions")
    return [given]


def items_of(request: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The request's input as a list of items, a plain text as one message of the user.

    Raises:
        RequestRefused: It is neither.
    """
    content = request.get("input")
    if isinstance(content, str):
        return [{"role": "user", "content": content}]
    if not is_sequence(content):
        raise RequestRefused("`input` must be a string or a list of items", field="input")
    items: list[Mapping[str, Any]] = []
    for index, item in enumerate(content):
        if not is_object(item):
            raise RequestRefused(f"`input[{index}]` is not an object", field="input")
        items.append(item)
    return items


def text_of(content: Any, index: int, harness: str) -> str:
    """The text of an item's content or output, its parts joined by line ends.

    Args:
        index: The item's place in the input, for messages.

    Raises:
        RequestRefused: There is something else than text in it.
    """
    if isinstance(content, str):
        return content
    if not is_sequence(content):
        raise RequestRefused(f"`input[{index}].content` must be text", field="input")
    texts: list[str] = []
    for part in content:
        text = part.get("text") if is_object(part) else None
        if not isinstance(text, str):
            kind = part.get("type") if is_object(part) else type(part).__name__
            raise RequestRefused(f"`input[{index}]`: {harness} takes only text, not {kind!r}", field="input")
        texts.append(text)
    return "\n".join(texts)


def token_limit(request: Mapping[str, Any]) -> int | None:
    """``max_output_tokens``, or None.

    Raises:
        RequestRefused: It is no whole number >= 1.
    """
    limit = request.get("max_output_tokens")
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        raise RequestRefused(
            f"`max_output_tokens` is {limit!r}, expected a whole number >= 1", field="max_output_tokens"
        )
    return limit


def sampling_of(request: Mapping[str, Any]) -> dict[str, float]:
    """``temperature`` and ``top_p`` as far as they are given.

    Raises:
        RequestRefused: One is no number.
    """
    sampling: dict[str, float] = {}
    for name in ("temperature", "top_p"):
        value = request.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise RequestRefused(f"`{name}` is {value!r}, expected a number", field=name)
        sampling[name] = value
    return sampling


def effort_of(request: Mapping[str, Any], harness: str, known: Collection[str]) -> str | None:
    """``reasoning.effort``, or None.

    Args:
        known: What it may be.

    Raises:
        RequestRefused: It is something else, or ``reasoning`` asks for more.
    """
    reasoning = request.get("reasoning")
    if reasoning is None:
        return None
    if not is_object(reasoning):
        raise RequestRefused("`reasoning` must be an object", field="reasoning")
    for name, value in reasoning.items():
        if name != "effort" and value is not None:
            raise RequestRefused(f"{harness} has no equivalent of `reasoning.{name}`", field="reasoning")
    effort = reasoning.get("effort")
    if effort is not None and effort not in known:
        raise RequestRefused(
            f"`reasoning.effort` is {effort!r}, expected one of {', '.join(known)}", field="reasoning"
        )
    return effort
