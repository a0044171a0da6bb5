"""A task that removes the shell keeps neither the proof of its end nor the clean-up from happening."""

from __future__ import annotations

import pytest

from inspan_core.errors import SandboxError
from inspan_core.sandbox import SandboxSpec
from inspan_runtime.providers.bubblewrap import BubblewrapProvider
from inspan_runtime.session_directory import remove_session_directory

pytestmark = [pytest.mark.sandbox, pytest.mark.anyio]


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
async def sandbox(tmp_path):
    provider = BubblewrapProvider({"runtime_dir": str(tmp_path / "run")})
    made = await provider.create(SandboxSpec(workdir="/task", ttl_s=120.0), key="k")
    yield made
    await made.stop()
    await provider.aclose()


async def lose(sandbox, *names):
    """Remove programs wherever the PATH finds them."""
    paths = [f"{folder}/{name}" for folder in ("/bin", "/usr/bin") for name in names]
    removed = await sandbox.exec(["rm", "-f", *paths], timeout_s=10.0)
    assert removed.exit_code == 0, removed.stderr


async def test_a_session_is_removed_by_whatever_shell_is_left(sandbox):
    await sandbox.upload("/tmp/inspan/one/input.json", b"{}")
    await lose(sandbox, "sh", "dash")
    await remove_session_directory(sandbox, "/tmp/inspan/one", keep_fence=False)
    with pytest.raises(FileNotFoundError):
        await sandbox.download("/tmp/inspan/one/input.json", limit_bytes=10)


async def test_without_any_shell_it_is_an_error_and_no_success(sandbox):
    await sandbox.upload("/tmp/inspan/one/input.json", b"{}")
    await lose(sandbox, "sh", "dash", "bash", "rbash", "busybox")
    with pytest.raises(SandboxError, match="could not be removed"):
        await remove_session_directory(sandbox, "/tmp/inspan/one")
