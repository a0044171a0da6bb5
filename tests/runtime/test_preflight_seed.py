"""A seed looks at its sandbox first: what cannot work is refused before anything is installed."""

import anyio
import pytest

from inspan_core import SandboxSpec
from inspan_core.findings import Cookie
from inspan_core.session import Settings
from inspan_core.wire import CloseRequest, EpisodeId, SeedRequest, TaskId
from inspan_runtime.harness_work import OwnedSandbox
from inspan_runtime.install_cache import RuntimeCache
from inspan_runtime.providers.local import LocalProvider
from inspan_runtime.service import AgentService, ServiceSettings
from inspan_runtime.testing.sandbox_wrappers import WrappedSandbox, of

pytestmark = pytest.mark.anyio
EPISODE = EpisodeId(rollout_id="r")
SEED = SeedRequest(agent_session_id="s", episode_id=EPISODE, task_id=TaskId(taskset="t", task_id="x"))


@pytest.fixture
def anyio_backend():
    return "asyncio"


def service_of(harness, tmp_path, wrapped=WrappedSandbox, **spec):
    provider = of(wrapped)(LocalProvider({"runtime_dir": str(tmp_path / "run")}))
    return AgentService(
        harness,
        {"box": lambda: provider},
        ServiceSettings(
            model_base_url="http://127.0.0.1:9",
            model_name="none",
            session=Settings(close_step_timeout_s=5.0),
            owned=OwnedSandbox(provider="box", spec=SandboxSpec(workdir=str(tmp_path / "work"), **spec)),
        ),
        cache=RuntimeCache(tmp_path / "cache", client_env={}),
    )


@pytest.mark.parametrize(
    ("needs", "words"),
    [
        ({"programs": ("sh", "no-such-program")}, "it has no no-such-program"),
        ({"free_mib": 1e12}, "MiB free"),
    ],
)
async def test_sandbox_that_lacks_what_is_needed_is_refused(needs, words, tmp_path, seed_only):
    plugin, harness = seed_only(**needs)
    async with service_of(harness, tmp_path) as service:
        with anyio.fail_after(30):
            answer = await service.seed(SEED, "d", Cookie.ABSENT)
            assert answer.status == 422 and words in answer.body["detail"], answer
            assert plugin.installed == 0
        assert list((tmp_path / "run/local").iterdir()) == [], "the sandbox of a refused seed lives"


async def test_fit_sandbox_is_installed_into(tmp_path, seed_only):
    plugin, harness = seed_only(programs=("sh", "cat"), free_mib=1)
    async with service_of(harness, tmp_path) as service:
        with anyio.fail_after(30):
            assert (await service.seed(SEED, "d", Cookie.ABSENT)).status == 200
            assert plugin.installed == 1
            close = CloseRequest(agent_session_id="s", episode_id=EPISODE)
            assert (await service.close(close, Cookie.SAME)).status == 200


async def test_a_seed_looks_once(tmp_path, seed_only):
    """What the installer wants to know is found by the same exec as what the harness wants."""
    looks = []

    class Counted(WrappedSandbox):
        async def exec(self, argv, **options):
            looks.append(argv[0])
            return await self.inner.exec(argv, **options)

    async with service_of(seed_only()[1], tmp_path, Counted) as service:
        with anyio.fail_after(30):
            assert (await service.seed(SEED, "d", Cookie.ABSENT)).status == 200
            assert looks == ["sh"]
            close = CloseRequest(agent_session_id="s", episode_id=EPISODE)
            assert (await service.close(close, Cookie.SAME)).status == 200


@pytest.mark.parametrize(("ttl_s", "warns"), [(600.0, True), (1e6, False), (None, False)])
async def test_sandbox_that_may_end_before_its_run_is_told_at_seed(ttl_s, warns, tmp_path, caplog, seed_only):
    async with service_of(seed_only()[1], tmp_path, ttl_s=ttl_s) as service:
        with anyio.fail_after(30):
            assert (await service.seed(SEED, "d", Cookie.ABSENT)).status == 200
            said = "session s: ttl_s is 600, but installation and run may take 22500 seconds"
            assert (said in caplog.text) is warns
            close = CloseRequest(agent_session_id="s", episode_id=EPISODE)
            assert (await service.close(close, Cookie.SAME)).status == 200
