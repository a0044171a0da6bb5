"""A Model Server with a script: Chat Completions and Responses, streamed and plain, on the loopback.

It answers call by call and keeps what it saw: path, headers, body, and by a witness who called. For plugins'
own tests.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from attrs import field, frozen

from inspan_runtime.testing.scripted_answers import (
    chat_answer,
    chat_chunks,
    responses_answer,
    responses_events,
)
from inspan_runtime.testing.sight import Caller

ROLLOUT_PATH = "/ng-rollout/check/v1"
SILENCE_LIMIT_S = 120.0


@frozen(kw_only=True)
class Reply:
    """What the model answers to one call.

    Attributes:
        text: The message, or None.
        calls: Tool calls: id, name, arguments as the model wrote them.
        usage: Input and output tokens; None: it does not tell.
        status: Another than 200 refuses the call, with `text` as the reason.
        is_silent: It never answers, until the server ends.
    """

    text: str | None = None
    calls: Sequence[tuple[str, str, str]] = ()
    usage: tuple[int, int] | None = (10, 5)
    status: int = 200
    is_silent: bool = False


@frozen(kw_only=True)
class SeenCall:
    """One request that came.

    Attributes:
        path: With the query.
        headers: Names in lower case.
        body: The JSON body, or None when it was none.
        response_id: The id that was answered, or None.
        callers: Who held a connection to the model, where a witness looked.
    """

    path: str
    headers: Mapping[str, str] = field(repr=False)
    body: Any
    response_id: str | None
    callers: Sequence[Caller]


class ScriptedModel:
    """The server; make it by `scripted_model`.

    Attributes:
        replies: One a call; the last one for ever.
        calls: Calls of the model, in the order in which they came.
        strays: Requests for anything else than the model's three paths below the rollout's.
        asked: Set when the model was called.
    """

    def __init__(self, replies: Sequence[Reply]) -> None:
        self.replies = list(replies)
        self.calls: list[SeenCall] = []
        self.strays: list[SeenCall] = []
        self.asked = threading.Event()
        self.over = threading.Event()
        self._lock = threading.Lock()
        self._server = _Server(self)
        self._witness: Callable[[], Sequence[Caller]] | None = None

    @property
    def url(self) -> str:
        """Where it listens, without a path."""
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def base_url(self) -> str:
        """The rollout's base URL, which ends with ``/v1``."""
        return f"{self.url}{ROLLOUT_PATH}"

    @contextmanager
    def witnessed(self, witness: Callable[[], Sequence[Caller]]) -> Iterator[None]:
        """Have somebody look who calls, from the server's thread, while each call waits for its answer."""
        self._witness = witness
        try:
            yield
        finally:
            self._witness = None

    def callers(self) -> Sequence[Caller]:
        """Who calls now; nobody when there is no witness."""
        witness = self._witness
        try:
            return () if witness is None else witness()
        except (RuntimeError, CancelledError):
            return ()  # The witness ended while it was asked.

    def take(self, call: SeenCall, *, is_stray: bool) -> Reply:
        """Keep a request; what it is answered."""
        with self._lock:
            if is_stray:
                self.strays.append(call)
                return Reply(status=404, text="no such path")
            self.calls.append(call)
            self.asked.set()
            return self.replies[min(len(self.calls), len(self.replies)) - 1]

    def serve(self) -> None:
        """Serve until `end`."""
        self._server.serve_forever(poll_interval=0.01)

    def end(self) -> None:
        """Let go of every silent call and stop."""
        self.over.set()
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def scripted_model(*replies: Reply) -> Iterator[ScriptedModel]:
    """A model that answers `replies` one by one, served from a thread."""
    model = ScriptedModel(replies or [Reply(text="ok")])
    thread = threading.Thread(target=model.serve)
    thread.start()
    try:
        yield model
    finally:
        model.end()
        thread.join(30)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, model: ScriptedModel) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.model = model

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a client that was killed leaves a broken connection."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        if self.path.startswith(f"{ROLLOUT_PATH}/models"):
            models = [{"id": "policy", "object": "model", "owned_by": "check"}]
            self._send_json(200, {"object": "list", "data": models})
            return
        self._answer(None)

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers.get("content-length") or 0))
        try:
            body = json.loads(data)
        except ValueError:
            body = None
        self._answer(body)

    def _answer(self, body: Any) -> None:
        model = self.server.model
        api = {f"{ROLLOUT_PATH}/chat/completions": "chat", f"{ROLLOUT_PATH}/responses": "responses"}.get(
            self.path.partition("?")[0]
        )
        is_stray = api is None or not isinstance(body, dict)
        response_id = f"resp-{len(model.calls)}"
        call = SeenCall(
            path=self.path,
            headers={name.lower(): value for name, value in self.headers.items()},
            body=body,
            response_id=None if is_stray else response_id,
            callers=model.callers(),
        )
        reply = model.take(call, is_stray=is_stray)
        if reply.is_silent:
            model.over.wait(SILENCE_LIMIT_S)
            self.close_connection = True
            return
        if reply.status != 200:
            self._send_json(reply.status, {"error": {"message": reply.text or "refused", "type": "check"}})
            return
        head = {"model": str(body.get("model")), "created": int(time.time())}
        told = {"text": reply.text, "calls": reply.calls, "usage": reply.usage}
        is_streamed = body.get("stream") is True
        if api == "chat":
            plain, events = chat_answer, chat_chunks
        else:
            plain, events = responses_answer, responses_events
        if is_streamed:
            self._send(200, "text/event-stream", b"".join(events(response_id, head, told)))
        else:
            self._send_json(200, plain(response_id, head, told))

    def _send_json(self, status: int, value: Any) -> None:
        self._send(status, "application/json", json.dumps(value).encode())

    def _send(self, status: int, kind: str, data: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
