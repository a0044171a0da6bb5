"""With a warm cache nothing is asked of any network: shown in a network namespace that has none."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from inspan_core.plugins import load_plugins
from inspan_runtime.install_cache import default_cache_dir

pytestmark = [pytest.mark.sandbox, pytest.mark.registry, pytest.mark.timeout(600)]

INSPAN = Path(sys.executable).with_name("inspan")
NAMES = [name for name in load_plugins().harness_names() if name != "echo"]
QUICK = "codex"
CELLS = [pytest.param(name, marks=() if name == QUICK else pytest.mark.full) for name in NAMES]
UNSHARE = ["unshare", "--net", *(() if os.geteuid() == 0 else ("--map-root-user",))]
# The loopback is all that there is: it has to be brought up (SIOCSIFFLAGS with IFF_UP).
LOOPBACK_UP = """
import fcntl, os, socket, struct, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
    fcntl.ioctl(control, 0x8914, struct.pack("16sh", b"lo", 1))
os.execv(sys.argv[1], sys.argv[1:])
"""


def run(*command, expect=0, **env):
    ended = subprocess.run(
        [str(part) for part in command],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == expect, f"{command}\n{ended.stdout[-3000:]}\n{ended.stderr[-3000:]}"
    return ended.stdout


def alone(*command, expect=0, **env):
    """Run where there is no network but a loopback of its own."""
    return run(*UNSHARE, sys.executable, "-c", LOOPBACK_UP, *command, expect=expect, **env)


@pytest.fixture(scope="module", params=CELLS)
def warm(request, tmp_path_factory):
    """A harness, and a cache folder that has its archive and nothing unpacked."""
    run(INSPAN, "harness", "install", request.param)
    home = tmp_path_factory.mktemp("xdg")
    archives = home / "inspan" / "archives"
    archives.mkdir(parents=True)
    for path in (default_cache_dir(os.environ) / "archives").glob(f"{request.param}-*"):
        os.link(path, archives / path.name) if path.suffix == ".tar" else shutil.copy(path, archives)
    return request.param, home


def test_there_is_no_network_there(tmp_path):
    script = "import socket; socket.create_connection(('192.0.2.1', 80), 5)"
    ended = subprocess.run(
        [*UNSHARE, sys.executable, "-c", LOOPBACK_UP, sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "Network is unreachable" in ended.stderr


@pytest.mark.full
def test_a_cold_cache_fails_there(tmp_path):
    cold = {"XDG_CACHE_HOME": str(tmp_path)}
    alone(INSPAN, "harness", "install", "codex", expect=1, **cold)


def test_a_warm_cache_installs_without_a_network(warm):
    name, home = warm
    told = json.loads(alone(INSPAN, "harness", "install", name, "--json", XDG_CACHE_HOME=str(home)))
    assert told["runtime"]["prefix"].startswith("/opt/inspan/shared/")


@pytest.mark.full
def test_a_whole_episode_needs_no_network_but_the_loopback(warm, tmp_path):
    """Also no titles, telemetry or update checks: they would have nowhere to go."""
    name, home = warm
    command = [INSPAN, "demo", "--harness", name, "--json", "--run-dir", tmp_path / "records"]
    episode = json.loads(alone(*command, XDG_CACHE_HOME=str(home)))
    assert (episode["reward"], episode["outcome"]) == (1.0, "completed")
