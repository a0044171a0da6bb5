"""One exchange with the upstream on behalf of a harness: status, errors and streams pass as they come.

The record is written before the last byte goes out. When the upstream breaks off, so does the gateway: a
harness must not take half an answer for a whole one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import anyio
import httpx
from attrs import define
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from inspan_server.model.answers import json_bytes, responses_events
from inspan_server.model.assembly import Assembly
from inspan_server.model.call import CallInProgress
from inspan_server.model.capture import CallOutcome
from inspan_server.model.chat import openai_error
from inspan_server.model.responses import Event, ResponseStream, whole_response
from inspan_server.model.rollouts import Rollout
from inspan_server.model.sse import EventReader
from inspan_server.model.upstream import HOP_BY_HOP, CookieJars

ANSWER_LIMIT_BYTES = 64 * 1024 * 1024
EVENT_STREAM = "text/event-stream"


@define(kw_only=True)
class Exchange:
    """What to ask of the upstream, and for whom."""

    client: httpx.AsyncClient
    method: str
    url: str
    headers: Mapping[str, str]
    content: bytes
    call: CallInProgress
    rollout: Rollout
    jars: CookieJars

    def finish(self, status: int | None, response: Any, outcome: CallOutcome) -> None:
        """Write the call's record; only the first call counts."""
        if self.call.finished:
            return
        self.rollout.last_was_good = outcome == "answered"
        self.call.finish(status=status, response=response, outcome=outcome)


class _Broken(Exception):
    """The upstream failed before its answer was whole.

    Attributes:
        status: What the harness is told if nothing was said yet.
    """

    def __init__(self, message: str, status: int = 502) -> None:
        super().__init__(message)
        self.status = status


class PassedAnswer(Response):
    """The upstream's answer, byte for byte.

    Args:
        assembly: Makes what puts a stream together for the record.
    """

    def __init__(self, exchange: Exchange, assembly: Callable[[], Assembly]) -> None:
        super().__init__()
        self._exchange = exchange
        self._assembly: Assembly = assembly()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, unless the client goes first: then the upstream's call is given up too."""
        exchange = self._exchange
        sender = _Sender(send)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_watch, receive, tasks.cancel_scope)
                await self._answer(sender)
                tasks.cancel_scope.cancel()
        finally:
            # No effect when the exchange itself has said how it ended.
            exchange.finish(sender.status, self._so_far(), "client_gone")

    async def _answer(self, sender: _Sender) -> None:
        exchange = self._exchange
        try:
            async with exchange.client.stream(
                exchange.method, exchange.url, headers=exchange.headers, content=exchange.content
            ) as answer:
                exchange.jars.take(exchange.rollout.key, answer.headers.get_list("set-cookie"))
                kind = answer.headers.get("content-type", "")
                if answer.status_code < 400 and kind.lower().startswith(EVENT_STREAM):
                    await self._stream(answer, sender)
                else:
                    await self._whole(answer, sender)
        except httpx.TimeoutException as error:
            await self._break(sender, _Broken(f"the model server was silent too long: {error!r}", 504))
        except httpx.HTTPError as error:
            await self._break(sender, _Broken(f"the model server cannot be reached: {error!r}"))
        except _Broken as error:
            await self._break(sender, error)

    async def _whole(self, answer: httpx.Response, sender: _Sender) -> None:
        data = await _read(answer)
        outcome: CallOutcome = "answered" if answer.status_code < 400 else "refused"
        self._exchange.finish(answer.status_code, _as_json(data), outcome)
        await sender.start(answer.status_code, self._kept_headers(answer))
        await sender.end(data)

    async def _stream(self, answer: httpx.Response, sender: _Sender) -> None:
        reader = EventReader()
        await sender.start(answer.status_code, self._kept_headers(answer))
        async for part in answer.aiter_raw():
            for event in reader.feed(part):
                self._assembly.feed(event)
            if reader.saw_done or self._assembly.is_final:
                self._finish_stream(answer.status_code)
            await sender.send(part)
        if not (reader.saw_done or self._assembly.is_whole):
            raise _Broken("the model server's stream ended before its end")
        self._finish_stream(answer.status_code)
        await sender.end(b"")

    def _finish_stream(self, status: int) -> None:
        self._exchange.finish(status, self._assembly.answer(), "answered")

    def _kept_headers(self, answer: httpx.Response) -> list[tuple[bytes, bytes]]:
        kept = [(name.lower(), value) for name, value in answer.headers.raw]
        passed = [(name, value) for name, value in kept if name.decode("latin-1") not in HOP_BY_HOP]
        own = self._exchange.rollout.cookie_header()
        return [*passed, *((name.encode(), value.encode()) for name, value in own.items())]

    def _so_far(self) -> Any:
        return self._assembly.answer()

    async def _break(self, sender: _Sender, error: _Broken) -> None:
        """Say it by status where nothing was said yet; else break off as well."""
        if sender.status is not None:
            self._exchange.finish(sender.status, self._so_far(), "dropped")
            return
        body = openai_error(str(error), type_="upstream_error", code="upstream_unreachable")
        self._exchange.finish(error.status, body, "refused")
        own = self._exchange.rollout.cookie_header()
        headers = [(b"content-type", b"application/json")]
        headers += [(name.encode(), value.encode()) for name, value in own.items()]
        await sender.start(error.status, headers)
        await sender.end(json_bytes(body))


class ConvertedAnswer(PassedAnswer):
    """A Chat Completions answer of the upstream as a Responses answer; errors pass unchanged."""

    def __init__(self, exchange: Exchange, stream: ResponseStream) -> None:
        super().__init__(exchange, _NoAssembly)
        self._responses = stream

    async def _whole(self, answer: httpx.Response, sender: _Sender) -> None:
        if answer.status_code >= 400:
            await super()._whole(answer, sender)
            return
        value = _as_json(await _read(answer))
        if not isinstance(value, dict) or not value.get("choices"):
            raise _Broken("the model server's answer is not a Chat Completions answer")
        response = whole_response(self._responses, value)
        self._exchange.finish(answer.status_code, response, "answered")
        await sender.start(answer.status_code, self._converted_headers(answer, "application/json"))
        await sender.end(json_bytes(response))

    async def _stream(self, answer: httpx.Response, sender: _Sender) -> None:
        reader, stream = EventReader(), self._responses
        await sender.start(answer.status_code, self._converted_headers(answer, EVENT_STREAM))
        await self._say(sender, stream.begin())
        async for part in answer.aiter_raw():
            for chunk in reader.feed(part):
                error = chunk.get("error")
                if isinstance(error, Mapping):
                    await self._end(answer, sender, stream.fail(error))
                    return
                await self._say(sender, stream.feed(chunk))
        if not stream.is_finished:
            raise _Broken("the model server's stream ended before its end")
        await self._end(answer, sender, stream.end())

    async def _say(self, sender: _Sender, events: list[Event]) -> None:
        if events:
            await sender.send(b"".join(responses_events(events)))

    async def _end(self, answer: httpx.Response, sender: _Sender, events: list[Event]) -> None:
        self._exchange.finish(answer.status_code, self._responses.response, "answered")
        await sender.end(b"".join(responses_events(events)))

    def _converted_headers(self, answer: httpx.Response, kind: str) -> list[tuple[bytes, bytes]]:
        kept = [pair for pair in self._kept_headers(answer) if pair[0] != b"content-type"]
        return [*kept, (b"content-type", kind.encode())]

    def _so_far(self) -> Any:
        return self._responses.response


class _NoAssembly:
    """Nothing to put together: the conversion holds the answer."""

    is_whole = is_final = False

    def feed(self, event: Mapping[str, Any]) -> None:
        """Nothing."""

    def answer(self) -> dict[str, Any]:
        return {}


@define
class _Sender:
    """The answer's way to the harness."""

    _send: Send
    status: int | None = None

    async def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.status = status
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def send(self, part: bytes) -> None:
        await self._send({"type": "http.response.body", "body": part, "more_body": True})

    async def end(self, part: bytes) -> None:
        await self._send({"type": "http.response.body", "body": part, "more_body": False})


async def _watch(receive: Receive, scope: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


async def _read(answer: httpx.Response) -> bytes:
    data = bytearray()
    async for part in answer.aiter_raw():
        data += part
        if len(data) > ANSWER_LIMIT_BYTES:
            raise _Broken(f"the model server's answer is longer than {ANSWER_LIMIT_BYTES} bytes")
    return bytes(data)


def _as_json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return {"undecodable": data[:2000].decode("utf-8", "replace")}
