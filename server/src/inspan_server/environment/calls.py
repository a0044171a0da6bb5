"""One HTTP call of an episode, with the habits of the field's Environment Servers.

A lost connection is tried again: every endpoint joins or replays a repeated request. Only the status
decides what an answer means: 408, 425, 429 and 5xx may be cured by a new episode, any other 4xx cannot.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, Literal

import anyio
import httpx
from attrs import frozen

from inspan_core.codec import parse_json
from inspan_core.errors import InspanError, WireError
from inspan_server.environment.cookies import cookie_header

Stage = Literal["seed", "agent", "cleanup", "verification"]
RETRYABLE_4XX = frozenset({408, 425, 429})
MAX_ANSWER_BYTES = 256 * 1024 * 1024
MAX_DETAIL_CHARS = 2000


class StageFailure(InspanError):
    """A stage of an episode did not do its part.

    Attributes:
        stage: Which.
        terminal: Whether a new episode cannot help.
    """

    def __init__(self, stage: Stage, reason: str, *, terminal: bool) -> None:
        super().__init__(reason)
        self.stage = stage
        self.terminal = terminal


@frozen(kw_only=True)
class Retries:
    """How long a lost connection is tried again.

    Attributes:
        window_s: Seconds since the first loss after which the call is given up.
        delay_s: Seconds between two tries.
    """

    window_s: float = 60.0
    delay_s: float = 0.5


@frozen
class Answered:
    """A successful answer: its JSON object, and the HTTP response for its cookies."""

    body: Mapping[str, Any]
    response: httpx.Response


def new_client() -> httpx.AsyncClient:
    """A client that keeps no cookies of its own, reads no proxy settings and never times out a reading.

    A harness may work for hours before its activation is answered: episodes are bounded as a whole.
    """
    refuses_all = CookieJar(policy=DefaultCookiePolicy(allowed_domains=()))
    return httpx.AsyncClient(
        cookies=refuses_all,
        timeout=httpx.Timeout(None, connect=10.0),
        trust_env=False,
        limits=httpx.Limits(max_connections=None),
        follow_redirects=False,
    )


async def call(
    client: httpx.AsyncClient,
    stage: Stage,
    what: str,
    url: str,
    body: Any,
    *,
    cookies: Mapping[str, str] | None = None,
    retries: Retries,
) -> Answered:
    """POST a JSON body and read the JSON object that answers it.

    Args:
        what: Names the call in messages, for example ``"agent activation"``.

    Raises:
        StageFailure: The connection stayed lost, the status is not 200, or the answer does not parse.
    """
    response = await _post(client, stage, what, url, body, cookies or {}, retries)
    if response.status_code != 200:
        status = response.status_code
        final = 400 <= status < 500 and status not in RETRYABLE_4XX
        raise StageFailure(stage, f"{what} answered {status}: {_detail(response)}", terminal=final)
    try:
        value = parse_json(response.content, MAX_ANSWER_BYTES, lone_surrogates="replace")
    except WireError as error:
        raise StageFailure(stage, f"{what}: the answer does not parse: {error}", terminal=True) from error
    if not isinstance(value, dict):
        raise StageFailure(stage, f"{what}: expected an object, got {type(value).__name__}", terminal=True)
    return Answered(value, response)


async def _post(
    client: httpx.AsyncClient,
    stage: Stage,
    what: str,
    url: str,
    body: Any,
    cookies: Mapping[str, str],
    retries: Retries,
) -> httpx.Response:
    content = json.dumps(body).encode("ascii")
    headers = {"content-type": "application/json", "accept": "*/*", **cookie_header(cookies)}
    first_loss: float | None = None
    while True:
        try:
            return await client.post(url, content=content, headers=headers)
        except httpx.TransportError as error:
            now = anyio.current_time()
            first_loss = now if first_loss is None else first_loss
            if now - first_loss + retries.delay_s > retries.window_s:
                reason = f"{what}: connection to {url} lost for {retries.window_s:g} s: {_named(error)}"
                raise StageFailure(stage, reason, terminal=False) from error
        await anyio.sleep(retries.delay_s)


def _detail(response: httpx.Response) -> str:
    """The sentence of ``{"detail": ...}``, else the body as it came; bounded."""
    try:
        value = parse_json(response.content, MAX_ANSWER_BYTES, lone_surrogates="replace")
    except WireError:
        value = None
    detail = value.get("detail") if isinstance(value, dict) else None
    text = detail if isinstance(detail, str) else response.text
    return text[:MAX_DETAIL_CHARS]


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")
