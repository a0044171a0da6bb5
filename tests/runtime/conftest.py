"""Real container engines of the tests' own; where there can be none, that is said loudly."""

import os
from contextlib import contextmanager

import pytest

from inspan_runtime.testing.private_engine import NoEngine, private_docker, private_podman

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
