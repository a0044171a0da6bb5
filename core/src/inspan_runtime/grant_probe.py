"""Runs inside a sandbox: tries the granted tool servers from there, as the harness will.

Standard library only, Python 3.8 syntax; sent to the interpreter on its standard input, with the orders
behind it, so that nothing of a grant is in a command line, in the environment or in a file. Reads a JSON
list of ``{"name", "kind", "url", "headers", "limit_s"}`` and prints a JSON list of ``{"name", "problem",
"tools"}``: `problem` is null where the server can be used. An MCP server is asked as a client asks it
(initialize, notifications/initialized, tools/list, over streamable HTTP); of another server only that it
answers HTTP is wanted; one of kind ``http`` may also redirect anywhere. Each has its own time; certificates
are checked; nothing is printed of what a server says but a JSON-RPC error's message and the names of its
tools.
"""

import http.client
import json
import os
import ssl
import sys
import threading
import time
from typing import Any, Dict, List, Optional, Tuple
from urllib.parse import urljoin, urlsplit

PROTOCOL = "2025-06-18"
ANSWER_LIMIT_BYTES = 4 * 1024 * 1024
PAGES = 50
REDIRECTS = 3
MESSAGE_CHARS = 200
TOOLS = 1000
NAME_CHARS = 200
GATEWAY_FAILURES = (502, 503, 504)


class Unusable(Exception):
    """The server cannot be used; the message says why."""


class Server:
    """One tool server."""

    def __init__(self, order: Dict[str, Any]) -> None:
        self.url = order["url"]
        self.headers: Dict[str, str] = dict(order["headers"])
        self.until = time.monotonic() + order["limit_s"]
        self.next_id = 0
        self.follows = order["kind"] != "http"

    def send(self, method: str, body: Optional[bytes]) -> Tuple[http.client.HTTPResponse, bytes]:
        """One request; a redirection within the same server is followed with its body, where it matters."""
        for _ in range(REDIRECTS + 1):
            parts = urlsplit(self.url)
            left = self.until - time.monotonic()
            if left <= 0:
                raise Unusable("it took too long")
            if parts.scheme == "https":
                connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                    parts.netloc.rpartition("@")[2], timeout=left, context=ssl.create_default_context()
                )
            else:
                connection = http.client.HTTPConnection(parts.netloc.rpartition("@")[2], timeout=left)
            path = (parts.path or "/") + ("?" + parts.query if parts.query else "")
            try:
                connection.request(method, path, body=body, headers=self.headers)
                response = connection.getresponse()
                if response.status not in (307, 308) or not self.follows:
                    return response, self.read(response)
            finally:
                connection.close()
            target = urljoin(self.url, response.headers.get("location", ""))
            if urlsplit(target)[:2] != parts[:2]:
                raise Unusable("it redirects to another server")
            self.url = target
        raise Unusable("it redirects without end")

    def read(self, response: http.client.HTTPResponse) -> bytes:
        """The body: of an event stream only as far as the answer that is waited for."""
        is_stream = response.headers.get_content_type() == "text/event-stream"
        data = b""
        while len(data) <= ANSWER_LIMIT_BYTES:
            part = response.read1(65536)
            data += part
            if not part or (is_stream and self.found(data) is not None):
                return data
            if time.monotonic() > self.until:
                raise Unusable("it took too long")
        raise Unusable("its answer is larger than %d bytes" % ANSWER_LIMIT_BYTES)

    def found(self, data: bytes) -> Any:
        """The answer with the awaited id among the events of a stream, or None."""
        for event in data.replace(b"\r\n", b"\n").split(b"\n\n")[:-1]:
            lines = [line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:")]
            message = parsed(b"\n".join(lines))
            if isinstance(message, dict) and message.get("id") == self.next_id and "method" not in message:
                return message
        return None

    def call(self, method: str, params: Dict[str, Any]) -> Dict[str, Any]:
        """One JSON-RPC request; its result."""
        self.next_id += 1
        message = {"jsonrpc": "2.0", "id": self.next_id, "method": method, "params": params}
        response, data = self.send("POST", json.dumps(message).encode())
        if response.status != 200:
            raise Unusable("it answered %s with HTTP status %d" % (method, response.status))
        is_stream = response.headers.get_content_type() == "text/event-stream"
        answer = self.found(data) if is_stream else parsed(data)
        if not isinstance(answer, dict) or answer.get("jsonrpc") != "2.0" or answer.get("id") != self.next_id:
            raise Unusable("what answers there is no MCP server: no JSON-RPC answer to %s" % method)
        error, result = answer.get("error"), answer.get("result")
        if error is not None:
            text = error.get("message") if isinstance(error, dict) else error
            raise Unusable("it answered %s with an error: %s" % (method, str(text)[:MESSAGE_CHARS]))
        if not isinstance(result, dict):
            raise Unusable("what answers there is no MCP server: no result of %s" % method)
        session = response.headers.get("mcp-session-id")
        if method == "initialize" and session:
            self.headers["Mcp-Session-Id"] = session
        return result

    def mcp_tools(self) -> List[str]:
        """The names of an MCP server's tools, by a session that is ended again."""
        self.headers["Content-Type"] = "application/json"
        self.headers["Accept"] = "application/json, text/event-stream"
        client = {"name": "inspan", "version": "1"}
        given = {"protocolVersion": PROTOCOL, "capabilities": {}, "clientInfo": client}
        version = self.call("initialize", given).get("protocolVersion")
        if not isinstance(version, str):
            raise Unusable("what answers there is no MCP server: initialize brought no protocolVersion")
        self.headers["MCP-Protocol-Version"] = version
        note = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        response, _ = self.send("POST", json.dumps(note).encode())
        if response.status >= 400:
            raise Unusable("it answered notifications/initialized with HTTP status %d" % response.status)
        names: List[str] = []
        cursor: Any = None
        for _ in range(PAGES):
            page = self.call("tools/list", {} if cursor is None else {"cursor": cursor})
            tools = page.get("tools")
            if not isinstance(tools, list):
                raise Unusable("its tools/list brought no list of tools")
            names += [str(tool.get("name"))[:NAME_CHARS] for tool in tools if isinstance(tool, dict)]
            cursor = page.get("nextCursor")
            if not cursor:
                break
        if not names:
            raise Unusable("it lists no tools")
        self.leave()
        return names[:TOOLS]

    def leave(self) -> None:
        """End the session; a server that does not know how is none the worse."""
        if "Mcp-Session-Id" in self.headers:
            try:
                self.send("DELETE", None)
            except (Unusable, OSError, http.client.HTTPException):
                pass

    def answers_http(self) -> List[str]:
        """Whether anything answers at all."""
        response, _ = self.send("HEAD", None)
        if response.status in GATEWAY_FAILURES:
            raise Unusable("it answered with HTTP status %d" % response.status)
        return []


def parsed(data: bytes) -> Any:
    """JSON, or None."""
    try:
        return json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        return None


def probe(order: Dict[str, Any]) -> Tuple[Optional[str], List[str]]:
    """What is wrong with a server, or None; and its tools."""
    try:
        server = Server(order)
        return None, server.mcp_tools() if order["kind"] == "mcp" else server.answers_http()
    except Unusable as error:
        return str(error), []
    except (OSError, http.client.HTTPException, ValueError) as error:
        text = str(error) or type(error).__name__
        return "it cannot be reached from inside the sandbox: %s" % text[:MESSAGE_CHARS], []


def main() -> None:
    """Try all at once; who has not answered in its time has not answered."""
    orders = json.load(sys.stdin)
    found: Dict[int, Tuple[Optional[str], List[str]]] = {}

    def run(number: int) -> None:
        found[number] = probe(orders[number])

    started = time.monotonic()
    threads = []
    for number in range(len(orders)):
        threads.append(threading.Thread(target=run, args=(number,), daemon=True))
        threads[-1].start()
    report = []
    for number, order in sorted(enumerate(orders), key=lambda each: each[1]["limit_s"]):
        threads[number].join(max(0.0, started + order["limit_s"] - time.monotonic()))
        late: Tuple[str, List[str]] = "it did not answer within %g seconds" % order["limit_s"], []
        problem, tools = found.get(number, late)
        report.append({"name": order["name"], "problem": problem, "tools": tools})
    print(json.dumps(report), flush=True)
    # A thread may still hang in a name look-up.
    os._exit(0)


if __name__ == "__main__":
    main()
