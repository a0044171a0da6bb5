"""Takes secrets out of what comes from a sandbox, by value.

Whoever learnt a secret there may have written it anywhere: a tool that prints the memory of the harness, a
model server that repeats the key it refuses. What is redacted before it is journalled and parsed is in no
answer either.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from attrs import evolve

from inspan_core.errors import HarnessError, InspanError
from inspan_core.harness import Artifacts
from inspan_core.wire import DirectHttpAccess, ToolAccess

MARK = b"[redacted]"
LEVELS = 4
"""As it is, as JSON text, and as JSON text in JSON text: a body in an event in a log."""

SHORTEST_SECRET = 8
"""In characters. What is shorter protects nothing, and is found in innocent text."""


def secrets_of(grants: Iterable[ToolAccess], model_key: str | None, *more: str) -> tuple[str, ...]:
    """The values that an episode's harness may know and nobody else should read.

    Args:
        more: Values beside those of the grants: cookies that a tool server has set.
    """
    values = (model_key or "", *_grant_secrets(grants), *more)
    return tuple(value for value in values if len(value) >= SHORTEST_SECRET)


def _grant_secrets(grants: Iterable[ToolAccess]) -> Iterator[str]:
    for grant in grants:
        if isinstance(grant, DirectHttpAccess):
            yield from (*grant.headers.values(), *grant.cookies.values())
        else:
            yield from grant.connection.headers.values()


def redacted(artifacts: Artifacts, secrets: Iterable[str]) -> Artifacts:
    """The artifacts without the secrets, also where they stand in JSON text, or in JSON text within it."""
    if not artifacts.files:
        return artifacts
    forms = {form.encode() for secret in secrets for form in _forms(secret)}
    files = dict(artifacts.files)
    for form in sorted(forms, key=len, reverse=True):
        files = {name: data.replace(form, MARK) for name, data in files.items()}
    return evolve(artifacts, files=files)


def redacted_text(text: str, secrets: Iterable[str]) -> str:
    """The text without the secrets."""
    for form in sorted({form for secret in secrets for form in _forms(secret)}, key=len, reverse=True):
        text = text.replace(form, MARK.decode())
    return text


@contextmanager
def without_secrets(secrets: Iterable[str]) -> Iterator[None]:
    """Takes the secrets out of the words of an error that leaves the block: they go into logs and answers."""
    try:
        yield
    except InspanError as error:
        error.args = tuple(
            redacted_text(each, secrets) if isinstance(each, str) else each for each in error.args
        )
        raise
    except Exception as error:
        words = f"{type(error).__name__}: {error}"
        cleaned = redacted_text(words, secrets)
        if cleaned == words:
            raise
        # Of a foreign type nobody knows where else it holds them.
        raise HarnessError(cleaned) from None


def _forms(secret: str) -> Iterator[str]:
    for _ in range(LEVELS):
        yield secret
        secret = json.dumps(secret)[1:-1]
