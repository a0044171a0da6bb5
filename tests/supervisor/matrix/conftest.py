"""One event loop, and one sandbox of each provider, for all cells."""

import os
import shutil
import sys
import tempfile
import uuid
from contextlib import ExitStack

import anyio.from_thread
import pytest

from inspan_core.sandbox import SandboxSpec
from inspan_runtime.providers.bubblewrap import BubblewrapProvider
from inspan_runtime.providers.local import LocalProvider

from .bench import Bench

PROGRAMS = ("tmux", "setsid", "nohup")


@pytest.fixture(scope="session")
def portal():
    """The loop; a coroutine function is called in it by `portal.call`."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    assert missing == [], (
        f"the matrix needs the programs {missing}: apt-get install tmux util-linux coreutils"
    )
    with anyio.from_thread.start_blocking_portal() as portal:
        yield portal


@pytest.fixture(scope="session")
def make_sandbox(portal):
    """Make a sandbox of a provider; all end with the session."""
    stack = ExitStack()
    # Last of all: a sandbox's keeper ends with the folder of its state, whatever became of its stop.
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="matrix-"))

    def make(name, **spec):
        if "pids" in spec and not (os.geteuid() == 0 and os.access("/sys/fs/cgroup", os.W_OK)):
            pytest.skip("NO CONTROL GROUPS: only a root that may write to /sys/fs/cgroup limits sandboxes")
        provider = {"local": LocalProvider, "bubblewrap": BubblewrapProvider}[name](
            {"runtime_dir": f"{folder}/run"}
        )
        root = f"{folder}/local" if name == "local" else "/tmp/m"
        spec = SandboxSpec(workdir=f"{root}/task", ttl_s=7200.0, **spec)

        async def create():
            return await provider.create(spec, key=uuid.uuid4().hex)

        sandbox = portal.call(create)
        stack.callback(portal.call, sandbox.stop)
        return Bench(sandbox, root, sandbox.descriptor.get("python") or sys.executable)

    with stack:
        yield make


@pytest.fixture(scope="session")
def benches(portal, make_sandbox):
    """The sandbox of a provider that many cells share."""
    made = {}

    def bench(name):
        if name not in made:
            made[name] = make_sandbox(name)
            portal.call(made[name].prepare)
            if name == "bubblewrap":
                portal.call(made[name].isolate)
        return made[name]

    return bench
