"""The watch over model calls, around a client of the test's: what it lets pass, refuses and records."""

from __future__ import annotations

import json
from typing import ClassVar

import pytest

from inspan_hermes.model_calls import ModelCalls, SettingsNotApplied, Trace


class Chunk:
    def __init__(self, **body):
        self.body = body

    def model_dump(self):
        return self.body


class Stream:
    """As the client's: iterating it iterates what it holds."""

    def __init__(self, chunks):
        self._iterator = iter(chunks)

    def __iter__(self):
        return iter(self._iterator)


def client(answer):
    """A client's class whose method gives `answer` and remembers what it was asked."""

    class Completions:
        asked: ClassVar = []

        def create(self, **request):
            self.asked.append(request)
            if isinstance(answer, Exception):
                raise answer
            return answer

    return Completions


def watched(tmp_path, answer, **asked):
    completions = client(answer)
    calls = ModelCalls(Trace(str(tmp_path)), asked)
    calls.watch(completions)
    return completions, calls


def events(tmp_path):
    lines = (tmp_path / "events.jsonl").read_bytes().split(b"\n")
    return [json.loads(line)["event"] for line in lines if line]


def delta(finish_reason=None, **parts):
    return Chunk(id="r1", choices=[{"delta": parts, "finish_reason": finish_reason}], usage=None)


TURN = {"model": "m", "tools": [{"function": {"name": "terminal"}}], "stream": True}


def test_an_answer_is_recorded_word_for_word_as_its_chunks_came(tmp_path):
    chunks = [
        delta(reasoning_content="Hm"),
        delta(content="I "),
        delta(content="look"),
        delta(tool_calls=[{"index": 0, "id": "c1", "function": {"name": "terminal", "arguments": '{"a'}}]),
        delta(tool_calls=[{"index": 0, "function": {"arguments": '": \ud800'}}]),
        delta(finish_reason="tool_calls"),
        Chunk(id="r1", choices=[], usage={"prompt_tokens": 3, "completion_tokens": 4}),
    ]
    completions, _ = watched(tmp_path, Stream(chunks))
    messages = [{"role": "user", "content": "Hi"}]
    assert len(list(completions().create(messages=messages, **TURN))) == 7
    request, answer = events(tmp_path)
    assert (request["purpose"], request["since"], request["messages"]) == ("turn", 0, messages)
    assert answer["message"] == {
        "content": "I look",
        "reasoning": "Hm",
        "tool_calls": [{"id": "c1", "name": "terminal", "arguments": '{"a": \ud800'}],
    }
    assert (answer["whole"], answer["usage"]["prompt_tokens"], answer["response_id"]) == (True, 3, "r1")


def test_only_what_is_new_in_the_conversation_is_written(tmp_path):
    completions, _ = watched(tmp_path, Stream([]))
    first = [{"role": "user", "content": "Hi"}]
    more = [*first, {"role": "assistant", "content": "a"}, {"role": "tool", "content": "b"}]
    for messages in (first, more, [{"role": "user", "content": "Summary"}]):
        completions().create(messages=messages, **TURN)
    shown = [(e["since"], len(e["messages"])) for e in events(tmp_path) if e["type"] == "model.request"]
    assert shown == [(0, 1), (1, 2), (0, 1)]


@pytest.mark.parametrize("sent", [{}, {"temperature": 0.7}, {"temperature": None}])
def test_a_turn_with_other_settings_than_asked_is_not_sent(tmp_path, sent):
    completions, _ = watched(tmp_path, Stream([]), temperature=0.5)
    with pytest.raises(SettingsNotApplied, match="temperature"):
        completions().create(messages=[], **TURN, **sent)
    assert completions.asked == []
    violation = events(tmp_path)[-1]
    assert (violation["type"], violation["field"], violation["asked"]) == (
        "settings.violated",
        "temperature",
        0.5,
    )


def test_a_limit_that_hermes_raised_is_put_back_and_its_own_calls_are_not_checked(tmp_path):
    completions, calls = watched(tmp_path, Stream([]), max_tokens=100, temperature=0.5)
    completions().create(messages=[], temperature=0.5, max_tokens=200, **TURN)
    calls.purpose = "compaction"
    completions().create(messages=[], model="m", max_completion_tokens=9000)
    assert [r.get("max_tokens", r.get("max_completion_tokens")) for r in completions.asked] == [100, 100]
    assert [e["purpose"] for e in events(tmp_path) if e["type"] == "model.request"] == ["turn", "compaction"]


class Refused(Exception):
    status_code = 429

    class response:
        text = '{"error": {"message": "slow down"}}'


def test_an_error_keeps_status_and_body_and_goes_on_to_hermes(tmp_path):
    completions, _ = watched(tmp_path, Refused("Error code: 429"))
    with pytest.raises(Refused):
        completions().create(messages=[], **TURN)
    error = events(tmp_path)[-1]
    assert (error["status"], error["body"], error["error"]) == (429, Refused.response.text, "Refused")


def test_a_stream_that_breaks_is_recorded_as_far_as_it_came(tmp_path):
    def chunks():
        yield delta(content="half")
        raise ConnectionError("gone")

    completions, _ = watched(tmp_path, Stream(chunks()))
    with pytest.raises(ConnectionError):
        list(completions().create(messages=[], **TURN))
    *_, error, answer = events(tmp_path)
    assert (error["type"], error["status"]) == ("model.error", None)
    assert (answer["message"]["content"], answer["whole"]) == ("half", False)


def test_a_plain_answer_is_recorded_too(tmp_path):
    message = {"role": "assistant", "content": "Summary."}
    body = {"id": "r2", "choices": [{"message": message, "finish_reason": "stop"}], "usage": None}
    completions, _ = watched(tmp_path, Chunk(**body))
    completions().create(messages=[], model="m")
    answer = events(tmp_path)[-1]
    assert (answer["message"]["content"], answer["whole"]) == ("Summary.", True)


def test_an_event_beyond_the_limit_keeps_what_it_is_and_how_long_it_was(tmp_path):
    trace = Trace(str(tmp_path))
    trace.say("tool.completed", id="c1", result="x" * 5_000_000)
    (line,) = (tmp_path / "events.jsonl").read_bytes().splitlines()
    record = json.loads(line)
    assert record["event"]["type"] == "tool.completed"
    assert record["cut"] > 5_000_000 - 4 * 1024 * 1024
