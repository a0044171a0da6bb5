"""Unpacking on the host by several processes, and by one that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from inspan_core.harness import RuntimeKey
from inspan_runtime.install_cache import RuntimeCache

pytestmark = pytest.mark.anyio

KEY = RuntimeKey(harness="tiny", version="1", os="linux", arch="x86_64", libc="musl")
FILES = 1000
PROCESS = """
import sys, anyio
from pathlib import Path
from inspan_core.harness import RuntimeKey
from inspan_runtime.install_cache import RuntimeCache

key = RuntimeKey(harness="tiny", version="1", os="linux", arch="x86_64", libc="musl")
cache = RuntimeCache(Path(sys.argv[1]), client_env={}, report=lambda line: print(line, flush=True))

async def main():
    archive = await cache.archive(key, None)
    await cache.unpacked(key, archive)

anyio.run(main)
"""


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
async def cache(tmp_path):
    """A cache that has the archive of many small files, and nothing unpacked."""
    made = RuntimeCache(tmp_path / "cache", client_env={})

    async def build(folder):
        for number in range(FILES):
            Path(folder.path, f"file-{number}").write_text("x" * 100)

    await made.archive(KEY, build)
    return made


def process(cache):
    command = [sys.executable, "-c", PROCESS, str(cache.root)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


async def test_several_processes_unpack_once(cache):
    said = [started.communicate(timeout=50)[0] for started in [process(cache) for _ in range(3)]]
    assert "".join(said) == f"unpacking {KEY}\n"
    assert cache.shared.is_intact(str(KEY))
    assert len(list((cache.shared.folder / str(KEY)).glob("file-*"))) == FILES


async def test_one_that_is_killed_leaves_no_half_runtime_and_no_lock(cache):
    started = process(cache)
    deadline = time.monotonic() + 40
    while not list(cache.root.glob("runtimes/.*/file-1*")):
        assert time.monotonic() < deadline and started.poll() is None, "it was never seen unpacking"
        os.sched_yield()
    started.send_signal(signal.SIGKILL)
    started.communicate(timeout=20)
    half = list(cache.root.glob("runtimes/.*/file-1*"))
    assert half and not (cache.shared.folder / str(KEY)).exists()
    assert not cache.shared.is_intact(str(KEY))
    old = half[0].parent
    os.utime(old, (1, 1))
    archive = await cache.archive(KEY, None)
    assert await cache.unpacked(KEY, archive)
    assert cache.shared.is_intact(str(KEY))
    assert not old.exists()
