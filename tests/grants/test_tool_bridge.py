"""The bridge over real sockets: what a harness asks of it, and what the granted server is asked then."""

import http.client
import http.server
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest

from inspan_core.tool_bridge import Jar, ToolBridge, has_expired, quoted, unquoted

TOOLS = [
    {"name": name, "description": "", "parameters": {"type": "object", "properties": {}}}
    for name in ("any", "count", "large", "late", "gone", "moved")
]


class Granted(http.server.BaseHTTPRequestHandler):
    """Answers by the tool's name; what it was asked is kept with the server."""

    def log_message(self, format, *args):
        """Say nothing."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.seen.append((self.path, body, dict(self.headers)))
        tool = self.path.rpartition("/")[2]
        if tool == "gone":
            return
        status, headers, answer = 200, [], b'"ok"'
        if tool == "any":
            answer = body["answer"].encode()
            headers = body.get("cookies", [])
            status = body.get("status", 200)
        elif tool == "count":
            before = int(dict(pair.split("=") for pair in self.headers["cookie"].split("; ")).get("n", 0))
            headers = [f"n={before + 1}; Path=/; HttpOnly"]
        elif tool == "large":
            answer = b"x" * (9 * 1024 * 1024)
        elif tool == "moved":
            status = 302
        self.send_response(status)
        for header in headers:
            self.send_header("Set-Cookie", header)
        if tool == "moved":
            self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


@pytest.fixture
def granted():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Granted)
    server.daemon_threads = True
    server.seen = []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    thread.join(20)
    server.server_close()


@pytest.fixture
def bridge(granted, tmp_path):
    order = {
        "base_url": f"http://127.0.0.1:{granted.server_port}/base/",
        "headers": {"X-Episode": "e-7"},
        "cookies": {"first": "one"},
        "tools": TOOLS,
        "token": "secret",
        "timeout_s": 20,
        "fetched_is_ready": True,
    }
    made = ToolBridge(order, str(tmp_path))
    made.start(look_s=0.02)
    yield made
    made.listener.shutdown()
    made.listener.server_close()


def ask(bridge, method, params=None, *, token="secret", verb="POST", **more):
    parts = urlsplit(bridge.url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=30)
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params or {}, **more}
    message = {key: value for key, value in message.items() if value is not None}
    body = method if isinstance(method, bytes) else json.dumps(message)
    try:
        connection.request(verb, parts.path, body=body, headers={"Authorization": f"Bearer {token}"})
        response = connection.getresponse()
        data = response.read()
    finally:
        connection.close()
    return response.status, json.loads(data) if data else None


def call(bridge, tool, arguments=None):
    status, answer = ask(bridge, "tools/call", {"name": tool, "arguments": arguments or {}})
    assert status == 200
    (part,) = answer["result"]["content"]
    return part["text"], answer["result"]["isError"]


def test_a_client_of_mcp_gets_what_it_expects(bridge, tmp_path):
    status, hello = ask(bridge, "initialize", {"protocolVersion": "2025-03-26"})
    assert (status, hello["id"], hello["result"]["protocolVersion"]) == (200, 1, "2025-03-26")
    assert ask(bridge, "notifications/initialized", id=None) == (202, None)
    assert not (tmp_path / "tools.ready").exists()
    _, listed = ask(bridge, "tools/list")
    assert [tool["name"] for tool in listed["result"]["tools"]] == [tool["name"] for tool in TOOLS]
    assert listed["result"]["tools"][0]["inputSchema"] == TOOLS[0]["parameters"]
    assert json.loads((tmp_path / "tools.ready").read_text())["tools"] == bridge.names
    assert ask(bridge, "ping")[1]["result"] == {}
    assert ask(bridge, "resources/list")[1]["error"]["code"] == -32601
    assert [ask(bridge, "x", verb=verb)[0] for verb in ("GET", "DELETE")] == [405, 200]


def test_who_does_not_know_the_token_gets_nothing(bridge, granted, tmp_path):
    for token in ("", "wrong", "secret2"):
        assert ask(bridge, "tools/list", token=token) == (401, None)
    assert (granted.seen, (tmp_path / "tools.ready").exists()) == ([], False)


@pytest.mark.parametrize("message", [b"", b"{", b"[]", b"5", b'{"id": 1}', b"[" * 100_000, b"\xff"])
def test_what_is_no_message_is_refused(bridge, message):
    assert ask(bridge, message)[0] == 400
    assert ask(bridge, "ping")[0] == 200


@pytest.mark.parametrize(
    "answer", ['{"a": [1, null]}', "[]", '"text"', "5", "null", "true", "not json at all"]
)
def test_an_answer_of_any_type_is_the_tools_output(bridge, granted, answer):
    assert call(bridge, "any", {"answer": answer}) == (answer, False)
    path, body, headers = granted.seen[-1]
    assert (path, body) == ("/base/any", {"answer": answer})
    assert (headers["X-Episode"], headers["Cookie"]) == ("e-7", "first=one")
    assert headers["Content-Type"] == "application/json"


def test_what_fails_is_told_as_an_error_and_not_tried_again(bridge, granted):
    assert call(bridge, "any", {"answer": '{"why": "full"}', "status": 409}) == (
        'HTTP status 409: {"why": "full"}',
        True,
    )
    text, is_error = call(bridge, "gone")
    assert is_error and text.startswith("the tool server could not be asked: ")
    text, is_error = call(bridge, "large")
    assert is_error and len(text) < 5000
    assert call(bridge, "moved")[1] is True
    assert call(bridge, "unheard of")[1] is True
    assert [path for path, *_ in granted.seen] == ["/base/any", "/base/gone", "/base/large", "/base/moved"]


def test_cookies_are_kept_as_a_browser_keeps_them(bridge, tmp_path):
    def jar():
        return json.loads((tmp_path / "cookies.json").read_text())["cookies"]

    assert jar() is None
    call(bridge, "any", {"answer": "1", "cookies": ["first=one"]})
    assert jar() is None
    call(bridge, "any", {"answer": "1", "cookies": ['s="a=b/c; d"; Path=/; HttpOnly', "t=x=y; Max-Age=60"]})
    # A semicolon ends a value, in quotes too: what a browser does, and servers encode it.
    assert jar() == {"first": "one", "s": '"a=b/c', "t": "x=y"}
    past = "t=; Expires=Thu, 01 Jan 1970 00:00:00 GMT"
    call(bridge, "any", {"answer": "1", "cookies": [past, "first=; Max-Age=0", "nonsense", "=5"]})
    assert set(jar()) == {"s"}
    assert (tmp_path / "cookies.json").stat().st_mode & 0o777 == 0o600


def test_calls_at_once_are_made_one_after_the_other(bridge, tmp_path):
    """A server that keeps its state in the cookie loses nothing."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: call(bridge, "count"), range(40)))
    assert json.loads((tmp_path / "cookies.json").read_text())["cookies"]["n"] == "40"


def test_a_jar_that_cannot_be_written_is_missed_rather_than_old(tmp_path):
    jar = Jar({"a": "1"}, str(tmp_path / "cookies.json"))
    (tmp_path / "cookies.json.part").mkdir()
    jar.take(["a=2"])
    assert jar.cookies == {"a": "2"}
    assert not (tmp_path / "cookies.json").exists()


@pytest.mark.parametrize(
    ("attributes", "expired"),
    [
        (["Max-Age=0"], True),
        (["max-age=-1"], True),
        (["Max-Age=1", "Expires=Thu, 01 Jan 1970 00:00:00 GMT"], False),
        (["Expires=Thu, 01 Jan 1970 00:00:00 GMT"], True),
        (["Expires=Thu, 01 Jan 2970 00:00:00 GMT"], False),
        (["Expires=never"], False),
        (["Max-Age=soon"], False),
        (["Path=/", "HttpOnly"], False),
    ],
)
def test_whether_a_cookie_is_set_to_be_removed(attributes, expired):
    assert has_expired(attributes) is expired


@pytest.mark.parametrize("value", ["", "plain", "a=b/c+d==", 'with "quotes"', "a; b, c", "back\\slash"])
def test_a_value_goes_out_as_it_came_in(value):
    assert unquoted(quoted(value)) == value
