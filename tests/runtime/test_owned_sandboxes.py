"""Owned sandboxes: one that came to be although its creation failed is stopped by its key."""

from __future__ import annotations

import resource
import shutil
import signal
from contextlib import closing, contextmanager

import anyio
import pytest
from attrs import evolve

from inspan_core import SandboxSpec, hookimpl, load_plugins
from inspan_core.errors import SandboxCreateError, SandboxGone, SandboxTransportError
from inspan_core.findings import Cookie
from inspan_core.session import Phase, Settings
from inspan_core.wire import CloseRequest, DirectHttpAccess, EpisodeId, SeedRequest, TaskId
from inspan_runtime.harness_work import OwnedSandbox
from inspan_runtime.install_cache import RuntimeCache
from inspan_runtime.journal import JournalError
from inspan_runtime.journal_sqlite import SqliteJournal
from inspan_runtime.providers.builtin import inspan_sandbox_providers
from inspan_runtime.service import AgentService, ServiceSettings
from inspan_runtime.testing.seed_only import SeedOnly

pytestmark = pytest.mark.anyio
EPISODE = EpisodeId(rollout_id="r")


@pytest.fixture
def anyio_backend():
    return "asyncio"


class NothingToInstall(SeedOnly):
    """A harness plugin that is ready at once."""

    @hookimpl
    async def inspan_install(self, context):
        await context.upload_text("kept.txt", "a file of the session")
        return {"folder": context.session_dir}


class Watched:
    """A real provider whose creations and stops are counted, and whose first answers may be lost."""

    def __init__(self, inner, errors):
        self.inner, self.errors = inner, errors
        self.created, self.stopped, self.descriptors = [], [], []
        self.name = inner.name

    async def create(self, spec, *, key, timeout_s=60.0):
        error = self.errors.pop(0) if self.errors else None
        if isinstance(error, SandboxCreateError):
            raise error
        sandbox = await self.inner.create(spec, key=key, timeout_s=timeout_s)
        self.created.append(key)
        self.descriptors.append(sandbox.descriptor)
        if error is not None:
            raise error
        return sandbox

    async def connect(self, descriptor, *, timeout_s=30.0):
        return await self.inner.connect(descriptor, timeout_s=timeout_s)

    async def stop(self, key, *, timeout_s=30.0):
        self.stopped.append(key)
        await self.inner.stop(key, timeout_s=timeout_s)

    async def list(self, labels):
        return await self.inner.list(labels)

    async def aclose(self):
        """The inner provider is shared by the whole test."""


def service_over(provider, tmp_path, *, plugin=None, journal=None, **times):
    spec = SandboxSpec(workdir=str(tmp_path / "work"))
    return AgentService(
        load_plugins(extra=[plugin or NothingToInstall()], entry_points=False).harness("seed-only"),
        {"box": lambda: provider},
        ServiceSettings(
            model_base_url="http://127.0.0.1:9",
            model_name="none",
            session=Settings(**{"close_step_timeout_s": 5.0, **times}),
            owned=OwnedSandbox(provider="box", spec=spec),
        ),
        cache=RuntimeCache(tmp_path / "cache", client_env={}),
        journal=journal,
    )


SEED = SeedRequest(agent_session_id="s", episode_id=EPISODE, task_id=TaskId(taskset="t", task_id="x"))


async def test_a_creation_whose_answer_is_lost_is_undone_and_a_retried_seed_gets_a_new_sandbox(tmp_path):
    inner = inspan_sandbox_providers()["local"]({"runtime_dir": str(tmp_path / "run")})
    provider = Watched(inner, [SandboxTransportError("the answer was lost")])
    async with service_over(provider, tmp_path) as service:
        with anyio.fail_after(30):
            assert (await service.seed(SEED, "d", Cookie.ABSENT)).status == 503
            assert provider.stopped == provider.created != []
            assert (await service.seed(SEED, "d", Cookie.ABSENT)).status == 200
            assert len(set(provider.created)) == 2
            assert len([path for path in tmp_path.rglob("*") if path.name == "kept.txt"]) == 1
            closed = await service.close(CloseRequest(agent_session_id="s", episode_id=EPISODE), Cookie.SAME)
            assert closed.status == 200
        # Files of the session went with its sandbox, also where nothing isolates it.
        assert [path for path in tmp_path.rglob("*") if path.name == "kept.txt"] == []
        with pytest.raises(SandboxGone):
            await inner.connect(provider.descriptors[1])
    await inner.aclose()


async def test_a_creation_that_the_provider_undid_needs_no_stop(tmp_path):
    inner = inspan_sandbox_providers()["local"]({"runtime_dir": str(tmp_path / "run")})
    provider = Watched(inner, [SandboxCreateError("no room")])
    async with service_over(provider, tmp_path) as service:
        with anyio.fail_after(30):
            answer = await service.seed(SEED, "d", Cookie.ABSENT)
            assert answer.status == 503 and "no room" in answer.body["detail"]
            assert provider.stopped == provider.created == []
    await inner.aclose()


class NeverReady(Watched):
    """Its first sandbox is up, and never becomes ready."""

    async def create(self, spec, *, key, timeout_s=60.0):
        sandbox = await super().create(spec, key=key, timeout_s=timeout_s)
        if len(self.created) == 1:
            await anyio.sleep_forever()
        return sandbox


async def test_a_sandbox_that_never_becomes_ready_fails_its_own_session_and_is_removed(tmp_path):
    inner = inspan_sandbox_providers()["local"]({"runtime_dir": str(tmp_path / "run")})
    provider, answers = NeverReady(inner, []), []
    other = evolve(SEED, agent_session_id="other", episode_id=EpisodeId(rollout_id="other"))
    async with service_over(provider, tmp_path, create_timeout_s=5.0) as service:

        async def seed():
            answers.append(await service.seed(SEED, "d", Cookie.ABSENT))

        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(seed)
                await until(lambda: provider.created)
                assert (await service.seed(other, "e", Cookie.ABSENT)).status == 200
            assert answers[0].status == 503
            assert answers[0].body["detail"] == "getting the sandbox took longer than its budget"
            assert provider.stopped == provider.created[:1]
            (left,) = await inner.list({})
            assert left["sandbox_id"] == provider.descriptors[1]["sandbox_id"]
            close = CloseRequest(agent_session_id="other", episode_id=other.episode_id)
            assert (await service.close(close, Cookie.SAME)).status == 200
        assert await inner.list({}) == []
    await inner.aclose()


@pytest.mark.parametrize("cookie", [Cookie.SAME, Cookie.OTHER, Cookie.MALFORMED])
async def test_what_is_refused_for_an_unknown_id_leaves_no_record(tmp_path, cookie):
    async with service_over(Watched(inspan_sandbox_providers()["local"]({}), []), tmp_path) as service:
        close = CloseRequest(agent_session_id="s", episode_id=EPISODE)
        assert (await service.seed(SEED, "d", cookie)).status == 409
        assert (await service.close(close, cookie)).status == 409
        assert service.phases == {}


class Stubborn(SeedOnly):
    """Its first installation ends when it likes to, whoever has been told that it is over."""

    def __init__(self):
        super().__init__()
        self.begun, self.may_end = anyio.Event(), anyio.Event()

    @hookimpl
    async def inspan_install(self, context):
        if not self.begun.is_set():
            self.begun.set()
            with anyio.CancelScope(shield=True):
                await self.may_end.wait()
        return {"folder": context.session_dir}


async def until(condition):
    with anyio.fail_after(30):
        while not condition():
            await anyio.sleep(0.01)


async def test_what_ends_after_its_session_was_forgotten_leaves_the_next_of_its_id_alone(tmp_path):
    provider = inspan_sandbox_providers()["local"]({"runtime_dir": str(tmp_path / "run")})
    plugin, close = Stubborn(), CloseRequest(agent_session_id="s", episode_id=EPISODE)
    journal = SqliteJournal(tmp_path / "state")
    times = {"close_step_timeout_s": 0.3, "retry_window_s": 0.3}
    async with service_over(provider, tmp_path, plugin=plugin, journal=journal, **times) as service:
        ended = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(service.seed, SEED, "d", Cookie.ABSENT)
            await plugin.begun.wait()
            assert (await service.close(close, Cookie.SAME)).status == 200
            await until(lambda: not service._sessions.phases)
            assert (await service.seed(SEED, "d", Cookie.ABSENT)).status == 200
            service.follow(lambda before, event, *_: ended.append(event))
            plugin.may_end.set()
            await until(lambda: ended)
            assert service._sessions.phases == {"s": Phase.READY}
            assert (await service.close(close, Cookie.SAME)).status == 200


async def test_a_seed_that_could_not_be_journalled_leaves_neither_secret_nor_contents(tmp_path):
    provider = inspan_sandbox_providers()["local"]({"runtime_dir": str(tmp_path / "run")})
    grant = DirectHttpAccess(name="g", base_url="http://127.0.0.1:9", headers={"x": "CANARY"}, required=False)
    granted, state = evolve(SEED, tool_accesses=(grant,)), tmp_path / "state"
    async with service_over(provider, tmp_path, journal=SqliteJournal(state)) as service:
        with no_room_on_the_disk(), pytest.raises(JournalError):
            await service.seed(granted, "granted", Cookie.ABSENT)
        assert not service._sessions.holds(EPISODE.capture_key)
        assert (await service.seed(SEED, "plain", Cookie.ABSENT)).status == 200
        shutil.copytree(state, tmp_path / "killed")
    for folder in (state, tmp_path / "killed"):
        assert not [path for path in folder.iterdir() if b"CANARY" in path.read_bytes()]
    with closing(SqliteJournal(tmp_path / "killed")) as journal:
        [stored] = journal.load()
        assert "seed" not in stored.secrets and b"tool_accesses" in stored.contents["seed"]


@contextmanager
def no_room_on_the_disk():
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
