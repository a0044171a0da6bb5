"""A session of the service: its sandbox sees the host's runtimes, its close lets them go and leaves them."""

from __future__ import annotations

import http.server
import threading
from pathlib import Path

import pytest

from inspan_core import SandboxSpec, hookimpl, load_plugins
from inspan_core.findings import Cookie
from inspan_core.harness import RuntimeKey
from inspan_core.session import Settings
from inspan_core.wire import CloseRequest, EpisodeId, SeedRequest, TaskId
from inspan_runtime.harness_work import OwnedSandbox
from inspan_runtime.install_cache import RuntimeCache
from inspan_runtime.install_shared import SHARED_PATH
from inspan_runtime.providers.bubblewrap import BubblewrapProvider
from inspan_runtime.service import AgentService, ServiceSettings
from inspan_runtime.testing.seed_only import SeedOnly

pytestmark = [pytest.mark.anyio, pytest.mark.sandbox]
KEY = RuntimeKey(harness="tiny", version="1", os="linux", arch="x86_64", libc="glibc")
HEALTH = ["sh", "{prefix}/tiny"]


@pytest.fixture
def anyio_backend():
    return "asyncio"


class Tiny(SeedOnly):
    """A harness whose runtime is one script."""

    def __init__(self):
        super().__init__("tiny")
        self.prefixes = []

    @hookimpl
    async def inspan_install(self, context):
        installer = context.installer
        await installer.target()
        prefix = installer.prefix(KEY)
        if not await installer.healthy(prefix, health=HEALTH, expect="tiny"):

            async def build(folder):
                Path(folder.path, "tiny").write_text("echo tiny\n")

            archive = await installer.archive(KEY, build)
            prefix = await installer.publish(KEY, archive, health=HEALTH, expect="tiny")
        self.prefixes.append(prefix)
        return {"prefix": prefix}


@pytest.fixture
def model_url():
    """A model server that answers whoever asks whether it is there."""

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


async def test_sessions_share_one_runtime_and_closing_them_leaves_it(tmp_path, model_url):
    tiny, said = Tiny(), []
    cache = RuntimeCache(tmp_path / "cache", client_env={}, report=said.append)
    provider = BubblewrapProvider({"runtime_dir": str(tmp_path / "run")})
    service = AgentService(
        load_plugins(extra=[tiny], entry_points=False).harness("tiny"),
        {"box": lambda: provider},
        ServiceSettings(
            model_base_url=model_url,
            model_name="none",
            session=Settings(close_step_timeout_s=20.0),
            owned=OwnedSandbox(provider="box", spec=SandboxSpec(workdir="/app", ttl_s=120.0)),
        ),
        cache=cache,
    )
    async with service:
        for name in ("s1", "s2"):
            episode, task = EpisodeId(rollout_id=name), TaskId(taskset="t", task_id="x")
            seed = SeedRequest(agent_session_id=name, episode_id=episode, task_id=task)
            reply = await service.seed(seed, "d", Cookie.ABSENT)
            assert reply.status == 200, reply
            assert cache.shared.is_leased(str(KEY))
            close = CloseRequest(agent_session_id=name, episode_id=episode)
            reply = await service.close(close, Cookie.SAME)
            assert reply.status == 200, reply
            assert not cache.shared.is_leased(str(KEY))
            assert cache.shared.is_intact(str(KEY))
    assert tiny.prefixes == [f"{SHARED_PATH}/{KEY}"] * 2
    assert said == [f"building {KEY}", f"unpacking {KEY}"]
