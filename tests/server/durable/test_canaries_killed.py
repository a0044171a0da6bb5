"""Secrets of the server and of an episode, through a kill, a recovery, and the end of the retry window.

They are in no answer, log, file or command line: of an episode's own, only the store of secrets knows, until
the window ends; of the server's, nobody. Every file below the folder of the test is read, whatever it is.
"""

from __future__ import annotations

import re
import signal
import stat
import threading
from pathlib import Path

import httpx
import pytest

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(180)]
OF_THE_SERVER = ("OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "DATABASE_URL", "HF_TOKEN")
ANY = re.compile(rb"canary[-_]of")
TOKEN, KEY = "canary_of-the-bearer-token", "canary_of-the-model-key"
LOOK = (
    "{ env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n'; "
    "grep -rlE 'canary[-_]of' /tmp /run /work /dev/shm /var/tmp $HOME 2>/dev/null | sed 's/^/FILE /'; } "
    "| grep -E 'canary[-_]of|^FILE ' > /counts/found; echo launched >> /counts/launches; "
    "until [ -e /counts/go ]; do sleep 0.1; done"
)


@pytest.fixture
def script():
    look = {"tool_calls": [{"name": "shell", "arguments": {"command": LOOK}}]}
    told = {
        "tool_calls": [{"name": "shell", "arguments": {"command": f"echo {KEY} is what the model repeats"}}]
    }
    return {"*": [look, told, {"content": f"it is done, with {KEY}"}]}


@pytest.fixture
def world(worlds, model, monkeypatch):
    for name in OF_THE_SERVER:
        monkeypatch.setenv(name, f"canary-of-the-server-{name.lower()}")
    monkeypatch.setenv("CANARY_KEY", KEY)
    monkeypatch.setenv("CANARY_TOKEN", TOKEN)
    monkeypatch.setenv("CANARY_COOKIE", "canary_of-the-cookie-secret")
    return worlds(
        model_server={"base_url": model.url, "api_key": "${CANARY_KEY}"},
        bearer_token="${CANARY_TOKEN}",
        cookie_secret="${CANARY_COOKIE}",
        session_close_retry_window_seconds=3,
    )


def grants():
    """The echo harness can use neither: they are kept all the same."""
    mcp = {"url": "http://127.0.0.1:9/mcp", "headers": {"x-episode": "canary-of-a-header"}}
    return [
        {
            "kind": "mcp",
            "name": "ng",
            "required": False,
            "connection": {"transport": "streamable_http", **mcp},
        },
        {
            "kind": "direct_http",
            "name": "web",
            "required": False,
            "base_url": "http://127.0.0.1:9",
            "headers": {"x-t": "canary-of-another-header"},
            "cookies": {"c": "canary-of-a-cookie"},
        },
    ]


def files_with_a_canary(world):
    found = set()
    for path in world.folder.rglob("*"):
        try:
            if stat.S_ISREG(path.lstat().st_mode) and ANY.search(path.read_bytes()):
                found.add(str(path.relative_to(world.folder)))
        except FileNotFoundError:
            continue
    return found


def lines_with_a_canary():
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes()
        except OSError:
            continue
        if ANY.search(line):
            found.append(line)
    return found


def is_kept(path):
    """The store of secrets, whatever files it has."""
    return path.startswith("state/secrets.")


def test_no_secret_is_anywhere_it_should_not_be(world, bodies, wait_for):
    told, body = [], {**bodies.seed("s"), "tool_accesses": grants()}
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with httpx.Client(base_url=world.url, timeout=60, headers=headers) as http:

        def post(path, asked):
            answer = http.post(path, json=asked)
            told.append((answer.status_code, f"{answer.headers}{answer.text}".encode()))

        def lose():
            try:
                httpx.post(
                    f"{world.url}/ng-rollout/r/v1/responses", json={"input": "x"},
                    headers=headers, cookies=http.cookies, timeout=60,
                )  # fmt: skip
            except httpx.TransportError:
                return

        post("/v1/agent_sessions", body)
        asking = threading.Thread(target=lose)
        asking.start()
        wait_for(world.launches, "the launch")
        kept = files_with_a_canary(world)
        assert kept and all(is_kept(path) for path in kept), kept
        assert lines_with_a_canary() == []
        world.end(signal.SIGKILL)
        asking.join(60)
        assert all(is_kept(path) for path in files_with_a_canary(world))
        world.start()
        (world.folder / "counts" / "go").touch()
        post("/ng-rollout/r/v1/responses", {"input": "x"})
        # The sandbox has what the model itself repeats, until the close.
        assert all(is_kept(path) or path.startswith("run/") for path in files_with_a_canary(world))
        post("/v1/agent_sessions/close", bodies.close("s"))
        assert lines_with_a_canary() == []
        post("/v1/agent_sessions/close", bodies.close("s"))
        told.append((200, http.get("/metrics").content))
        refused = httpx.post(f"{world.url}/v1/agent_sessions", json=body)
        assert (refused.status_code, ANY.search(refused.content)) == (401, None)
    assert [status for status, _ in told] == [200] * 5, told
    assert not [text for _, text in told if ANY.search(text)]
    assert "it is done, with [redacted]" in told[1][1].decode()
    assert (world.folder / "counts" / "found").read_text() == "", "the harness saw none"
    # Not even free pages, or what is left of a log, tell of it then.
    wait_for(lambda: not files_with_a_canary(world), "that the store of secrets forgets")
    world.end()
    assert files_with_a_canary(world) == set()
    assert world.sandboxes() == set()
