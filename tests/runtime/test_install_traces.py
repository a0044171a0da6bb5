"""What an installation leaves in a sandbox: the runtime and the session's folder; the task's is as it was."""

from __future__ import annotations

import os

import pytest

from inspan_core.plugins import load_plugins
from inspan_core.sandbox import SandboxSpec
from inspan_runtime.contexts import SessionContext
from inspan_runtime.install import SandboxInstaller
from inspan_runtime.install_build import package_client_env
from inspan_runtime.install_cache import RuntimeCache, default_cache_dir
from inspan_runtime.install_shared import create_with_runtimes
from inspan_runtime.providers.bubblewrap import BubblewrapProvider

pytestmark = [pytest.mark.anyio, pytest.mark.sandbox, pytest.mark.registry, pytest.mark.timeout(300)]

NAMES = [name for name in load_plugins().harness_names() if name != "echo"]
CELLS = [
    pytest.param(name, is_shown, marks=() if (name, is_shown) == ("codex", False) else pytest.mark.full)
    for name in NAMES
    for is_shown in (True, False)
]
# Everything that is newer than a mark, of all that can be written; /proc and /sys are the kernel's.
CHANGED = (
    "find / -xdev \\( -path /opt/inspan -o -path /proc -o -path /sys -o -path /dev \\) -prune "
    "-o -newer /mark -print; "
    "find /tmp /run /var/tmp -newer /mark"
)


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.mark.parametrize(("name", "is_shown"), CELLS)
async def test_only_the_runtimes_and_the_sessions_folder_change(tmp_path, name, is_shown):
    harness = load_plugins().harness(name)
    cache = RuntimeCache(default_cache_dir(os.environ), client_env=package_client_env(os.environ))
    provider, spec = (
        BubblewrapProvider({"runtime_dir": str(tmp_path)}),
        SandboxSpec(workdir="/app", ttl_s=300.0),
    )
    if is_shown:
        sandbox = await create_with_runtimes(provider, spec, cache.shared, key="k", timeout_s=30.0)
    else:
        sandbox = await provider.create(spec, key="k")

    async def sh(script):
        result = await sandbox.exec(["sh", "-c", script], timeout_s=60, cwd="/")
        return result.stdout.decode()

    try:
        before = await sh("touch /mark; env; command -v python3 node git")
        context = SessionContext(
            sandbox=sandbox,
            session_dir="/tmp/inspan/s1",
            workdir="/app",
            installer=SandboxInstaller(sandbox, cache, workdir="/app"),
            options=harness.spec.options,
        )
        await harness.install(context)
        changed = (await sh(CHANGED)).splitlines()
        after = await sh("env; command -v python3 node git")
    finally:
        await sandbox.stop()
    strange = [path for path in changed if path not in ("/", "/opt", "/tmp")]
    strange = [path for path in strange if not f"{path}/".startswith("/tmp/inspan/")]
    assert strange == []
    assert [path for path in changed if path.startswith("/tmp/inspan/s1")], "the marks are not seen"
    assert sorted(before.splitlines()) == sorted(after.splitlines())
