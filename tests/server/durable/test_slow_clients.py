"""Clients that are slow, endless, or come by TLS."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import sys
import time

import httpx
import pytest

pytestmark = [pytest.mark.timeout(120)]
INSPAN = [sys.executable, "-c", "import sys; from inspan_server.cli.main import main; sys.exit(main())"]
HEAD = b"POST /v1/agent_sessions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"


@pytest.fixture
def world(worlds, tmp_path):
    return worlds(
        kind="local",
        sandbox_config={"workdir": str(tmp_path / "work")},
        body_timeout_seconds=0.3,
        body_limit_bytes=2048,
        header_limit_bytes=4096,
    )


def exchange(world, data):
    """Send, and read until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", world.port), timeout=60) as wire:
        wire.sendall(data)
        received = b""
        while part := wire.recv(65536):
            received += part
    return received


def test_a_body_that_does_not_come_is_not_waited_for(world):
    answer = exchange(world, HEAD + b'Content-Length: 100\r\n\r\n{"half": ')
    assert answer.startswith(b"HTTP/1.1 408 ") and b"did not come within 0.3 seconds" in answer
    assert httpx.get(f"{world.url}/healthz").status_code == 200


def test_a_body_that_is_too_large_is_refused(world):
    answer = httpx.post(f"{world.url}/v1/agent_sessions", json={"agent_session_id": "x" * 3000})
    assert (answer.status_code, "is larger than 2048 bytes" in answer.text) == (413, True)


def test_headers_that_do_not_end_are_refused(world):
    answer = exchange(world, HEAD + b"X-Long: " + b"x" * 10_000)
    assert answer.startswith(b"HTTP/1.1 4")
    assert httpx.get(f"{world.url}/healthz").status_code == 200


@pytest.mark.full
def test_headers_that_come_slowly_hold_a_connection_for_a_bounded_time_only(world):
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", world.port), timeout=100) as wire:
        wire.sendall(b"POST /v1/agent")
        wire.settimeout(0.5)
        while time.monotonic() - began < 90:
            try:
                if wire.recv(1000) == b"":
                    return
                wire.sendall(b"x")
            except TimeoutError:
                wire.sendall(b"x")
            except OSError:
                return
    raise AssertionError("the connection is still open after 90 s")


def test_tls_is_served_and_a_wrong_key_is_wrong_usage(worlds, tmp_path, bodies, certificate):
    key, cert = certificate
    world = worlds(
        kind="local",
        sandbox_config={"workdir": str(tmp_path / "work")},
        harness_options={"model": False},
        tls={"certfile": str(cert), "keyfile": str(key)},
    )
    url = world.url.replace("http:", "https:")
    context = ssl.create_default_context(cafile=str(cert))
    assert httpx.post(f"{url}/v1/agent_sessions", json=bodies.seed("s"), verify=context).status_code == 200
    listed = subprocess.run(
        [*INSPAN, "sessions", "list", "--config", str(world.config), "--json"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert [each["agent_session_id"] for each in json.loads(listed.stdout)] == ["s"], listed.stderr
    closed = httpx.post(f"{url}/v1/agent_sessions/close", json=bodies.close("s"), verify=context)
    assert closed.status_code == 200
    key.write_text("no key")
    refused = subprocess.run(
        [*INSPAN, "serve", "--config", str(world.config), "--port", "0"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert refused.returncode == 2
    assert "cannot be used as certificate and key" in refused.stderr
    assert "Traceback" not in refused.stderr
