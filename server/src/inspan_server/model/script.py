"""Scripted model replies: what the gateway answers, call by call, for each rollout.

A script is a YAML or JSON object, read strictly: a key that is not known is refused and named, with the
rollout and the index of the reply::

    "*":                                   # any rollout that has no list of its own
      - reasoning: "The test fails, so I look."
        tool_calls: [{name: shell, arguments: {command: "cat calc.py"}}]
        usage: {prompt_tokens: 100, completion_tokens: 20}
      - error: {status: 429}               # with a body of its own: {status: 429, body: {...}}
      - content: "Done."
        delay_s: 0.5
      - content: "I begin"
        failure: {code: server_error, message: "the model gave up"}
    rollout-7:
      - content: "Half of this is lost."
        drop_after_chunks: 2
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import yaml
from attrs import field, frozen

from inspan_core.errors import ConfigError
from inspan_server.bounded_file import read_bounded

ANY_ROLLOUT = "*"
FINISH_REASONS = ("stop", "length", "tool_calls", "content_filter")
MAX_DELAY_S = 3600.0
MAX_SCRIPT_BYTES = 64 * 1024 * 1024


@frozen(kw_only=True)
class Usage:
    """Tokens as the model counts them; `cached_tokens` are part of `prompt_tokens`."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@frozen(kw_only=True)
class ScriptedToolCall:
    """A tool call of the model.

    Attributes:
        name: A tool that the harness advertises, or an abstract one (see `inspan_server.model.adapt`).
        arguments: An object, or a raw string that is sent as it is, however malformed.
    """

    name: str
    arguments: Mapping[str, Any] | str


@frozen(kw_only=True)
class ScriptedError:
    """An answer by status; without a body of its own it gets one of OpenAI's shape."""

    status: int
    body: Any = None


@frozen(kw_only=True)
class ScriptedFailure:
    """The model fails in the middle of its answer: an error in the stream, after what the reply says."""

    message: str = "scripted failure"
    code: str = "server_error"

    def body(self) -> dict[str, Any]:
        """The error object."""
        return {"message": self.message, "type": "scripted_failure", "param": None, "code": self.code}


@frozen(kw_only=True)
class Reply:
    """One answer of the model.

    Attributes:
        usage: None: the answer carries no usage at all.
        finish_reason: By default ``tool_calls`` when there are some, else ``stop``.
        delay_s: Silence before the first byte of the answer.
        failure: The stream ends with this error in place of its end; a plain answer is the error.
        drop_after_chunks: The connection breaks after that many chunks or events of the stream (of a
            plain answer: in the middle of its body); None: it does not.
    """

    reasoning: str | None = None
    content: str | None = None
    tool_calls: tuple[ScriptedToolCall, ...] = ()
    usage: Usage | None = None
    finish_reason: str | None = None
    error: ScriptedError | None = None
    failure: ScriptedFailure | None = None
    delay_s: float = 0.0
    drop_after_chunks: int | None = None


@frozen
class Script:
    """Replies by rollout key; `ANY_ROLLOUT` serves each key that is not listed, from its own beginning."""

    rollouts: Mapping[str, tuple[Reply, ...]] = field(factory=dict)

    def replies(self, rollout_key: str) -> tuple[Reply, ...] | None:
        """The replies for a rollout, or None when the script does not know it."""
        return self.rollouts.get(rollout_key, self.rollouts.get(ANY_ROLLOUT))


def load_script(path: str | Path) -> Script:
    """Read a script file (YAML or JSON).

    Raises:
        ConfigError: It cannot be read or does not fit; the message names the file.
    """
    path = Path(path)
    try:
        value = yaml.safe_load(read_bounded(path, MAX_SCRIPT_BYTES).decode("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"script {path}: {error}") from error
    try:
        return parse_script(value)
    except ConfigError as error:
        raise ConfigError(f"script {path}: {error}") from error


def parse_script(value: Any) -> Script:
    """Read a script from JSON values.

    Raises:
        ConfigError: It does not fit; the message names rollout, reply index and key.
    """
    if not isinstance(value, Mapping) or not value:
        raise ConfigError(f"expected an object of rollout keys, got {_shown(value)}")
    rollouts: dict[str, tuple[Reply, ...]] = {}
    for key, replies in value.items():
        if not isinstance(key, str):
            raise ConfigError(f"rollout key {key!r}: expected a string, put it in quotes")
        if not isinstance(replies, list):
            raise ConfigError(f"rollout {key!r}: expected a list of replies, got {_shown(replies)}")
        rollouts[key] = tuple(
            _reply(reply, f"rollout {key!r}, reply {index}") for index, reply in enumerate(replies)
        )
    return Script(rollouts)


def _reply(value: Any, where: str) -> Reply:
    fields = _object(value, tuple(attribute.name for attribute in attrs.fields(Reply)), where)
    calls = fields.get("tool_calls", [])
    if not isinstance(calls, list):
        raise ConfigError(f"{where}, tool_calls: expected a list, got {_shown(calls)}")
    reply = Reply(
        reasoning=_text(fields, "reasoning", where),
        content=_text(fields, "content", where),
        tool_calls=tuple(_tool_call(call, f"{where}, tool_calls[{i}]") for i, call in enumerate(calls)),
        usage=_usage(fields["usage"], f"{where}, usage") if fields.get("usage") is not None else None,
        finish_reason=_finish_reason(fields, where),
        error=_error(fields["error"], f"{where}, error") if "error" in fields else None,
        failure=_failure(fields["failure"], f"{where}, failure") if "failure" in fields else None,
        delay_s=_delay(fields, where),
        drop_after_chunks=_count(fields, "drop_after_chunks", where),
    )
    says = reply.reasoning is not None or reply.content is not None or bool(reply.tool_calls)
    beside = says or reply.usage or reply.finish_reason or reply.drop_after_chunks or reply.failure
    if reply.error is not None and beside:
        raise ConfigError(f"{where}: an error stands alone (only delay_s may be beside it)")
    if reply.error is None and reply.failure is None and not says and reply.drop_after_chunks is None:
        raise ConfigError(f"{where}: says nothing; give content, reasoning, tool_calls or error")
    return reply


def _tool_call(value: Any, where: str) -> ScriptedToolCall:
    fields = _object(value, ("name", "arguments"), where)
    name = _text(fields, "name", where)
    if not name:
        raise ConfigError(f"{where}: name is missing")
    arguments = fields.get("arguments", {})
    if not isinstance(arguments, str | Mapping):
        raise ConfigError(f"{where}, arguments: expected an object or a raw string, got {_shown(arguments)}")
    return ScriptedToolCall(name=name, arguments=arguments)


def _usage(value: Any, where: str) -> Usage:
    fields = _object(
        value, ("prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens"), where
    )
    prompt_tokens = _count(fields, "prompt_tokens", where)
    completion_tokens = _count(fields, "completion_tokens", where)
    if prompt_tokens is None or completion_tokens is None:
        raise ConfigError(f"{where}: prompt_tokens and completion_tokens are both needed")
    return Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        cached_tokens=_count(fields, "cached_tokens", where),
        reasoning_tokens=_count(fields, "reasoning_tokens", where),
    )


def _error(value: Any, where: str) -> ScriptedError:
    fields = _object(value, ("status", "body"), where)
    status = _count(fields, "status", where)
    if status is None or not 400 <= status <= 599:
        raise ConfigError(f"{where}, status: expected 400 to 599, got {_shown(fields.get('status'))}")
    return ScriptedError(status=status, body=fields.get("body"))


def _failure(value: Any, where: str) -> ScriptedFailure:
    fields = _object(value, ("message", "code"), where)
    texts = {key: _text(fields, key, where) for key in fields}
    return ScriptedFailure(**{key: text for key, text in texts.items() if text is not None})


def _finish_reason(fields: Mapping[str, Any], where: str) -> str | None:
    reason = fields.get("finish_reason")
    if reason is not None and reason not in FINISH_REASONS:
        raise ConfigError(f"{where}, finish_reason: expected one of {FINISH_REASONS}, got {_shown(reason)}")
    return reason


def _delay(fields: Mapping[str, Any], where: str) -> float:
    delay_s = fields.get("delay_s", 0.0)
    if isinstance(delay_s, bool) or not isinstance(delay_s, int | float) or not 0 <= delay_s <= MAX_DELAY_S:
        raise ConfigError(f"{where}, delay_s: expected 0 to {MAX_DELAY_S:g} seconds, got {_shown(delay_s)}")
    return float(delay_s)


def _object(value: Any, known: tuple[str, ...], where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}: expected an object, got {_shown(value)}")
    for key in value:
        if key not in known:
            raise ConfigError(f"{where}: unknown key {key!r}; known are {', '.join(known)}")
    return value


def _text(fields: Mapping[str, Any], key: str, where: str) -> str | None:
    value = fields.get(key)
    if value is not None and not isinstance(value, str):
        raise ConfigError(f"{where}, {key}: expected text, got {_shown(value)}")
    return value


def _count(fields: Mapping[str, Any], key: str, where: str) -> int | None:
    value = fields.get(key)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise ConfigError(f"{where}, {key}: expected a whole number, 0 or more, got {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
