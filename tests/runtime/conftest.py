"""Real container engines of the tests' own; where there can be none, that is said loudly."""

import itertools
import os
from contextlib import contextmanager

import pytest

from inspan_core import hookimpl, load_plugins
from inspan_core.errors import SandboxError
from inspan_core.harness import SandboxNeeds
from inspan_core.sandbox import SandboxSpec
from inspan_runtime.providers.docker.engine import needed_limits
from inspan_runtime.providers.docker.provider import DockerProvider
from inspan_runtime.providers.local import LocalProvider
from inspan_runtime.testing.private_engine import NoEngine, private_docker, private_podman
from inspan_runtime.testing.sandbox_checks import SANDBOX_CHECKS, CheckFailed
from inspan_runtime.testing.seed_only import SeedOnly

REQUIRED = "INSPAN_REQUIRE_ENGINES"
lacking = {}


@contextmanager
def engine_or_skip(name, make):
    """Skip where the engine cannot run; fail there if the environment promises that it can."""
    try:
        context = make()
        engine = context.__enter__()
    except NoEngine as error:
        lacking[name] = str(error)
        if os.environ.get(REQUIRED):
            pytest.fail(f"{REQUIRED} is set, but: {error}")
        pytest.skip(f"NO REAL ENGINE: {error}")
    try:
        yield engine
    finally:
        context.__exit__(None, None, None)


def pytest_terminal_summary(terminalreporter):
    for name, reason in lacking.items():
        terminalreporter.section(f"NO REAL {name.upper()}", red=True, bold=True)
        terminalreporter.line(f"Every test that needs {name} was SKIPPED: {reason}")


@pytest.fixture(scope="session")
def docker_engine():
    """A private dockerd, with images, and without any image registry."""
    with engine_or_skip("docker", private_docker) as engine:
        yield engine


@pytest.fixture(scope="session")
def podman_engine():
    """A private podman storage, with images."""
    with engine_or_skip("podman", private_podman) as engine:
        yield engine


@pytest.fixture(params=["docker", pytest.param("podman", marks=pytest.mark.full)])
def any_engine(request):
    """Either of them, with what is made there undone."""
    engine = request.getfixturevalue(f"{request.param}_engine")
    yield engine
    for name in engine.names():
        engine.run("unpause", name, check=False)
    engine.remove_all()


@pytest.fixture
def start_theirs(any_engine):
    """Start a container of others', whose first process collects nobody, as they often are."""

    def start(name, *options):
        limits = needed_limits() if any_engine.name == "podman" else []
        argv = ["run", "--detach", f"--name={name}", "--network=none", *limits, *options]
        any_engine.run(*argv, "inspan-busybox", "sleep", "600")

    return start


@pytest.fixture
def docker_provider(tmp_path, mounted_interpreters):
    """Make a provider over an engine, with folders of the test's."""

    def make(engine, **options):
        given = {"engine": engine.name, "engine_options": list(engine.options)}
        places = {"runtime_dir": str(tmp_path / "run"), "cache_dir": mounted_interpreters}
        return DockerProvider({**given, **places, **options})

    return make


@pytest.fixture
async def local_sandbox(tmp_path):
    """A sandbox of the provider `local`."""
    provider = LocalProvider({"runtime_dir": str(tmp_path / "run")})
    made = await provider.create(SandboxSpec(workdir=str(tmp_path / "work"), ttl_s=120.0), key="k")
    yield made
    await made.stop()
    await provider.aclose()


@pytest.fixture(scope="session")
def mounted_interpreters(tmp_path_factory):
    """Where the interpreter of mounted agents is made once."""
    return str(tmp_path_factory.mktemp("interpreters"))


@pytest.fixture
def may_limit():
    """A root that may make control groups; containers of a CI may not give that."""
    if os.geteuid() != 0 or not os.access("/sys/fs/cgroup", os.W_OK):
        lacking["control groups"] = "only a root that may write to /sys/fs/cgroup limits sandboxes"
        pytest.skip("NO CONTROL GROUPS: only a root that may write to /sys/fs/cgroup limits sandboxes")


@pytest.fixture
def find_defect(tmp_path, monkeypatch):
    """Run a check against a provider with a defect, made around an inner one, and see that it is found."""
    monkeypatch.setattr("inspan_runtime.testing.sandbox_check_support.PATIENCE_S", 2.0)
    checks = {check.__name__: check for check in SANDBOX_CHECKS}
    numbers = itertools.count()

    async def find(name, broken, make_inner, folder=tmp_path):
        inner = make_inner({"runtime_dir": str(tmp_path / "run")})

        def make_spec(**changes):
            workdir = f"{folder}/tasks/{next(numbers)}"
            return SandboxSpec(**{"workdir": workdir, "ttl_s": 60.0, **changes})

        found = (CheckFailed, SandboxError, TypeError, BrokenPipeError, ExceptionGroup)
        try:
            with pytest.raises(found) as raised:
                await checks[name](broken(inner), make_spec)
            if isinstance(raised.value, ExceptionGroup):
                assert raised.group_contains((CheckFailed, SandboxError))
        finally:
            for descriptor in await inner.list({}):
                await (await inner.connect(descriptor)).stop()

    return find


class Counting(SeedOnly):
    """It looks for its target, and counts its installations."""

    installed = 0

    @hookimpl
    async def inspan_install(self, context):
        self.installed += 1
        await context.installer.target()
        return {}


@pytest.fixture
def seed_only():
    """Make a harness that is only seeded, as the plugin and as what a service takes."""

    def make(**needs):
        plugin = Counting(needs=SandboxNeeds(**needs))
        return plugin, load_plugins(extra=[plugin], entry_points=False).harness("seed-only")

    return make
