"""A model that answers from a script, over either API."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import anyio
from attrs import evolve, frozen
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from inspan_server.model.adapt import NoFittingTool
from inspan_server.model.answers import JsonAnswer, StreamAnswer, chat_events, responses_events
from inspan_server.model.call import CallInProgress, Refusal
from inspan_server.model.capture import CallOutcome
from inspan_server.model.chat import completion, completion_chunks, openai_error
from inspan_server.model.responses import Event, ResponseStream, whole_response
from inspan_server.model.rollouts import Rollout
from inspan_server.model.script import Reply, Script, ScriptedFailure
from inspan_server.model.tool_names import read_tools


@frozen
class ScriptedModel:
    """Answers each call of a rollout with the next reply of its script.

    Attributes:
        models: Names for the list of models.
    """

    script: Script
    models: tuple[str, ...] = ("policy",)

    async def aclose(self) -> None:
        """Nothing is held."""

    async def list_models(self, request: Request, call: CallInProgress, rollout: Rollout) -> Response:
        """The names that it was given."""
        data = [{"id": name, "object": "model", "created": 0, "owned_by": "inspan"} for name in self.models]
        return json_answer(call, rollout, 200, {"object": "list", "data": data})

    async def chat_completions(
        self, request: Request, call: CallInProgress, rollout: Rollout, body: Mapping[str, Any]
    ) -> Response:
        """Answer a Chat Completions call.

        Raises:
            Refusal: The script has no reply for it.
            ClientDisconnect: The client went during a scripted silence.
        """
        reply = await self._next_reply(request, rollout)
        if reply.error is not None:
            return json_answer(call, rollout, reply.error.status, _error_body(reply))
        answer = _completion(reply, body, call)
        if not call.streamed:
            if reply.failure is not None:
                return json_answer(call, rollout, 500, {"error": reply.failure.body()})
            return json_answer(call, rollout, 200, answer, drop=reply.drop_after_chunks is not None)
        options = body.get("stream_options")
        include_usage = isinstance(options, Mapping) and options.get("include_usage") is True
        chunks = completion_chunks(answer, include_usage=include_usage)
        if reply.failure is not None:
            chunks = _cut_off(chunks, reply.failure)
            answer = {**answer, "error": reply.failure.body()}
        return self._stream(call, rollout, reply, chat_events(chunks), answer)

    async def responses(
        self, request: Request, call: CallInProgress, rollout: Rollout, body: Mapping[str, Any]
    ) -> Response:
        """Answer a Responses call; raises as `chat_completions` does."""
        reply = await self._next_reply(request, rollout)
        if reply.error is not None:
            return json_answer(call, rollout, reply.error.status, _error_body(reply))
        names = read_tools(body.get("tools"), strict=False)
        asked = {"model": body["model"], "tools": names.chat_tools()}
        answer = _completion(_with_flat_names(reply, names.scripted), asked, call)
        stream = ResponseStream(
            request=body,
            names=names,
            response_id=f"resp_{secrets.token_hex(12)}",
            created_at=int(call.started_at),
            new_call_id=_new_call_id,
        )
        if not call.streamed:
            response = whole_response(stream, answer)
            if reply.failure is not None:
                stream.fail(reply.failure.body())
            return json_answer(call, rollout, 200, response, drop=reply.drop_after_chunks is not None)
        events = [*_events(stream, answer, reply.failure)]
        return self._stream(call, rollout, reply, responses_events(events), stream.response)

    async def _next_reply(self, request: Request, rollout: Rollout) -> Reply:
        reply = self._take_reply(rollout)
        if reply.delay_s and await _client_gone_within(request, reply.delay_s):
            raise ClientDisconnect
        return reply

    def _take_reply(self, rollout: Rollout) -> Reply:
        """The next reply; nothing is awaited here, so two calls at once get successive ones."""
        replies = self.script.replies(rollout.key)
        if replies is None:
            message = f"the script has neither rollout {rollout.key} nor '*'"
            raise Refusal(400, message, type_="script_exhausted")
        taken = rollout.replies_taken
        rollout.replies_taken += 1
        if taken >= len(replies):
            have = f"script for rollout {rollout.key} has {len(replies)} replies"
            message = f"{have}; call {taken + 1} has none"
            raise Refusal(400, message, type_="script_exhausted")
        return replies[taken]

    def _stream(
        self,
        call: CallInProgress,
        rollout: Rollout,
        reply: Reply,
        events: Iterator[bytes],
        answer: dict[str, Any],
    ) -> Response:
        rollout.last_was_good = reply.drop_after_chunks is None and reply.failure is None
        return StreamAnswer(
            events,
            drop_after=reply.drop_after_chunks,
            headers=rollout.cookie_header(),
            done=lambda outcome: call.finish(status=200, response=answer, outcome=outcome),
        )


def json_answer(
    call: CallInProgress, rollout: Rollout, status: int, body: Any, *, drop: bool = False
) -> Response:
    """Record an answer that is whole, and give it."""
    rollout.last_was_good = status < 400 and not drop
    outcome: CallOutcome = "dropped" if drop else "answered" if status < 400 else "refused"
    call.finish(status=status, response=body, outcome=outcome)
    return JsonAnswer(status, body, drop=drop, headers=rollout.cookie_header())


def _new_call_id() -> str:
    return f"call_{secrets.token_hex(8)}"


def _completion(reply: Reply, asked: Mapping[str, Any], call: CallInProgress) -> dict[str, Any]:
    try:
        return completion(
            reply,
            asked,
            response_id=f"chatcmpl-{secrets.token_hex(12)}",
            created=int(call.started_at),
            new_call_id=_new_call_id,
        )
    except NoFittingTool as error:
        raise Refusal(400, str(error), type_="script_mismatch") from error


def _with_flat_names(reply: Reply, flat: Callable[[str], str]) -> Reply:
    calls = tuple(evolve(call, name=flat(call.name)) for call in reply.tool_calls)
    return evolve(reply, tool_calls=calls)


def _events(
    stream: ResponseStream, answer: Mapping[str, Any], failure: ScriptedFailure | None
) -> Iterator[Event]:
    yield from stream.begin()
    for chunk in completion_chunks(answer, include_usage=True):
        yield from stream.feed(chunk)
    yield from stream.end() if failure is None else stream.fail(failure.body())


def _cut_off(chunks: Iterator[dict[str, Any]], failure: ScriptedFailure) -> Iterator[dict[str, Any]]:
    """The chunks up to the end of the text, then an error in place of the rest."""
    for chunk in chunks:
        if not chunk["choices"] or chunk["choices"][0]["finish_reason"] is not None:
            break
        yield chunk
    yield {"error": failure.body()}


def _error_body(reply: Reply) -> Any:
    assert reply.error is not None
    if reply.error.body is not None:
        return reply.error.body
    return openai_error(f"scripted error {reply.error.status}", type_="scripted_error")


async def _client_gone_within(request: Request, delay_s: float) -> bool:
    """Stay silent for `delay_s`; return early, with True, when the client disconnects."""
    with anyio.move_on_after(delay_s):
        while (await request.receive())["type"] != "http.disconnect":
            pass
        return True
    return False
