"""The bridge of a shim: serves an episode's ``direct_http`` tools to the harness as an MCP server.

Standard library only, Python 3.8 syntax: this file travels into the sandbox beside `inspan_core.shim`, which
runs it in its own process, so that there is no process more to supervise. A harness that speaks MCP connects
to it over streamable HTTP; an extension of one that does not calls it with a few lines. Either way the
grant's headers and cookies are in the shim's memory only, never in a file that the model's tools can read
(but the jar that a call has changed), and one implementation answers for all harnesses.

A call of a tool becomes ``POST <base_url>/<tool>`` with the arguments as JSON, the grant's headers and the
cookies of the jar. The answer's body, JSON of any type, is the tool's output as text; an error's too, marked
as one. No call is repeated: the server may have done what was asked.

Written into the session folder::

    cookies.json   {"cookies": null}, or the whole jar as soon as an answer has changed it
    tools.ready    {"tools": [names]} when the harness has fetched the tools (see `fetched_is_ready`)
"""

import hmac
import http.client
import http.server
import json
import os
import ssl
import threading
import time
from email.utils import parsedate_to_datetime
from http.cookies import SimpleCookie
from typing import Any, Dict, List, Optional, Tuple
from urllib.parse import quote, urlsplit

JAR = "cookies.json"
READY = "tools.ready"
PROTOCOL = "2025-06-18"
BODY_LIMIT_BYTES = 16 * 1024 * 1024
ANSWER_LIMIT_BYTES = 8 * 1024 * 1024
NEEDS_QUOTES = frozenset(' ;,"\\')


def write_atomically(path: str, value: Any) -> None:
    """Write JSON so that a reader sees all of it or none."""
    draft = path + ".part"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as out:
        json.dump(value, out)
    os.replace(draft, path)


class Jar:
    """The cookies of one tool server; each change is in the file before the call is answered."""

    def __init__(self, cookies: Dict[str, str], path: str) -> None:
        self.cookies = dict(cookies)
        self.path = path
        self.lock = threading.Lock()
        write_atomically(path, {"cookies": None})

    def header(self) -> Optional[str]:
        """The ``Cookie`` header, or None."""
        with self.lock:
            pairs = ["%s=%s" % (name, quoted(value)) for name, value in self.cookies.items()]
        return "; ".join(pairs) or None

    def take(self, headers: List[str]) -> None:
        """Apply ``Set-Cookie`` headers."""
        with self.lock:
            before = dict(self.cookies)
            for header in headers:
                self._take(header)
            if self.cookies != before:
                self._save()

    def _save(self) -> None:
        try:
            write_atomically(self.path, {"cookies": self.cookies})
        except OSError:
            # A jar that is not there is noticed; one that lacks the last change is not.
            try:
                os.unlink(self.path)
            except OSError:
                pass

    def _take(self, header: str) -> None:
        pair, *attributes = header.split(";")
        name, separator, value = pair.strip().partition("=")
        if not name or not separator:
            return
        if has_expired([attribute.strip() for attribute in attributes]):
            self.cookies.pop(name, None)
        else:
            self.cookies[name] = unquoted(value)


def has_expired(attributes: List[str]) -> bool:
    """Whether a cookie is set in order to be removed."""
    given: Dict[str, str] = {}
    for attribute in attributes:
        name, _, value = attribute.partition("=")
        given[name.strip().lower()] = value.strip()
    try:
        if "max-age" in given:
            return int(given["max-age"]) <= 0
        if "expires" in given:
            return parsedate_to_datetime(given["expires"]).timestamp() <= time.time()
    except (ValueError, TypeError, OverflowError, IndexError):
        pass
    return False


def quoted(value: str) -> str:
    """A cookie's value as it may stand in a header."""
    return '"%s"' % value.replace("\\", "\\\\").replace('"', '\\"') if NEEDS_QUOTES & set(value) else value


def unquoted(value: str) -> str:
    """A cookie's value as it is meant: servers put those with special characters in quotes."""
    if not (len(value) >= 2 and value[0] == value[-1] == '"'):
        return value
    jar: SimpleCookie = SimpleCookie()
    jar.load("v=" + value)
    return jar["v"].value if "v" in jar else value[1:-1]


class ToolServer:
    """The granted server: a connection of its own for each call, one call at a time.

    A server may keep its state in a cookie: of two calls at once the one would undo what the other did.
    """

    def __init__(self, order: Dict[str, Any], jar: Jar) -> None:
        parts = urlsplit(order["base_url"])
        self.is_tls = parts.scheme == "https"
        self.address = parts.netloc.rpartition("@")[2]
        self.path = parts.path.rstrip("/")
        self.headers: Dict[str, str] = dict(order["headers"])
        self.timeout_s = float(order["timeout_s"])
        self.jar = jar
        self.turn = threading.Lock()

    def call(self, tool: str, arguments: Any) -> Tuple[str, bool]:
        """Call a tool: its output, and whether that is an error."""
        try:
            with self.turn:
                response, body = self._post(tool, json.dumps(arguments).encode())
        except (OSError, http.client.HTTPException, ValueError) as error:
            return "the tool server could not be asked: %s" % (str(error) or type(error).__name__), True
        text = body[:ANSWER_LIMIT_BYTES].decode("utf-8", "replace")
        if len(body) > ANSWER_LIMIT_BYTES:
            return "the tool's answer is larger than %d bytes; it begins with\n%s" % (
                ANSWER_LIMIT_BYTES,
                text[:4096],
            ), True
        if not 200 <= response.status < 300:
            return "HTTP status %d: %s" % (response.status, text), True
        return text, False

    def _post(self, tool: str, body: bytes) -> Tuple[http.client.HTTPResponse, bytes]:
        if self.is_tls:
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                self.address, timeout=self.timeout_s, context=ssl.create_default_context()
            )
        else:
            connection = http.client.HTTPConnection(self.address, timeout=self.timeout_s)
        sent = {name: value for name, value in self.headers.items() if name.lower() != "cookie"}
        cookies = [self.headers[name] for name in self.headers if name.lower() == "cookie"]
        cookies += [header for header in (self.jar.header(),) if header is not None]
        if cookies:
            sent["Cookie"] = "; ".join(cookies)
        sent["Content-Type"] = "application/json"
        sent.setdefault("Accept", "application/json")
        try:
            connection.request("POST", "%s/%s" % (self.path, quote(tool, safe="")), body=body, headers=sent)
            response = connection.getresponse()
            self.jar.take(response.headers.get_all("set-cookie") or [])
            return response, response.read(ANSWER_LIMIT_BYTES + 1)
        finally:
            connection.close()


class ToolBridge:
    """Serves the tools on the sandbox's loopback to whoever knows the token.

    Args:
        order: ``base_url``, ``headers`` and ``cookies`` of the grant, ``timeout_s`` for each call,
            ``tools`` (``name``, ``description``, ``parameters``), ``token``, and ``fetched_is_ready``:
            whether fetching the tools is all that the harness does to have them.
        folder: The session folder.
    """

    def __init__(self, order: Dict[str, Any], folder: str) -> None:
        self.tools: List[Dict[str, Any]] = order["tools"]
        self.names = [tool["name"] for tool in self.tools]
        self.token: str = order["token"]
        self.fetched_is_ready = bool(order["fetched_is_ready"])
        self.folder = folder
        self.server = ToolServer(order, Jar(order["cookies"], os.path.join(folder, JAR)))
        self.listener = Listener(("127.0.0.1", 0), Handler)
        self.listener.bridge = self
        self.url = "http://127.0.0.1:%d/mcp" % self.listener.server_address[1]

    def start(self, *, look_s: float = 3600.0) -> None:
        """Serve from now on, until this process ends.

        Args:
            look_s: How long it takes to notice a `shutdown` of the listener, which only tests ask for.
        """
        serve = self.listener.serve_forever
        threading.Thread(target=serve, args=(look_s,), daemon=True).start()

    def answer(self, method: str, params: Dict[str, Any]) -> Optional[Dict[str, Any]]:
        """The result of a request, or None for a method that there is not."""
        if method == "initialize":
            return {
                "protocolVersion": params.get("protocolVersion") or PROTOCOL,
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "tools", "version": "1"},
            }
        if method == "ping":
            return {}
        if method == "tools/list":
            if self.fetched_is_ready:
                write_atomically(os.path.join(self.folder, READY), {"tools": self.names})
            return {"tools": [described(tool) for tool in self.tools]}
        if method == "tools/call":
            name, arguments = params.get("name"), params.get("arguments")
            if name in self.names:
                text, is_error = self.server.call(str(name), {} if arguments is None else arguments)
            else:
                text, is_error = "there is no tool %r" % (name,), True
            return {"content": [{"type": "text", "text": text}], "isError": is_error}
        return None


def described(tool: Dict[str, Any]) -> Dict[str, Any]:
    """A function of a Responses request as an MCP tool."""
    schema = tool.get("parameters") or {"type": "object", "properties": {}}
    return {"name": tool["name"], "description": tool.get("description") or "", "inputSchema": schema}


class Listener(http.server.ThreadingHTTPServer):
    """The bridge's socket; each request has a thread that does not outlive the process."""

    daemon_threads = True
    bridge: Any = None

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is nothing to tell of."""


class Handler(http.server.BaseHTTPRequestHandler):
    """One connection of a client."""

    protocol_version = "HTTP/1.1"
    timeout = 3600.0

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: standard error is the harness's."""

    def do_GET(self) -> None:
        """There is no stream of the server's own."""
        self._send(405, None)

    def do_DELETE(self) -> None:
        """There are no sessions to end."""
        self._send(200, None)

    def do_POST(self) -> None:
        """One JSON-RPC message."""
        bridge = self.server.bridge  # type: ignore[attr-defined]
        given = self.headers.get("authorization", "")
        length = self.headers.get("content-length", "")
        if not length.isdigit() or int(length) > BODY_LIMIT_BYTES:
            self.close_connection = True
            self._send(413, None)
            return
        body = self.rfile.read(int(length))
        if not hmac.compare_digest(given.encode(), ("Bearer " + bridge.token).encode()):
            self._send(401, None)
            return
        try:
            message = json.loads(body.decode("utf-8"))
            method, params = message["method"], message.get("params") or {}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            self._send(400, None)
            return
        if "id" not in message:
            self._send(202, None)
            return
        answer: Dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        result = bridge.answer(method, params) if isinstance(params, dict) else None
        if result is None:
            answer["error"] = {"code": -32601, "message": "no such method"}
        else:
            answer["result"] = result
        self._send(200, json.dumps(answer).encode())

    def _send(self, status: int, data: Optional[bytes]) -> None:
        self.send_response(status)
        if data is not None:
            self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data or b"")))
        self.end_headers()
        self.wfile.write(data or b"")
