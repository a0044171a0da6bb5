"""The embedded providers keep the contract that `inspan_runtime.testing.sandbox_checks` spells out."""

import itertools

import pytest

from inspan_core.sandbox import SandboxProvider, SandboxSpec
from inspan_runtime.providers.bubblewrap import BubblewrapProvider
from inspan_runtime.providers.local import LocalProvider
from inspan_runtime.testing.sandbox_checks import SANDBOX_CHECKS, checks_for, needs_of

pytestmark = [pytest.mark.anyio, pytest.mark.sandbox]
# The kinds share what depends on the event loop, so one of them is enough for the other loop.
CELLS = [("local", "asyncio"), ("local", "trio"), ("bubblewrap", "asyncio"), ("read-only", "asyncio")]


@pytest.fixture(params=CELLS, ids="-".join)
def cell(request):
    return request.param


@pytest.fixture
def anyio_backend(cell):
    return cell[1]


@pytest.fixture
def provider(cell, tmp_path):
    options = {"runtime_dir": str(tmp_path / "run")}
    if cell[0] == "local":
        return LocalProvider(options)
    return BubblewrapProvider({**options, "writable_root": cell[0] == "bubblewrap"})


@pytest.fixture
def make_spec(provider, tmp_path):
    numbers = itertools.count()

    def make(**changes):
        below = tmp_path if isinstance(provider, LocalProvider) else "/task folder"
        return SandboxSpec(**{"workdir": f"{below}/work/{next(numbers)}", "ttl_s": 120.0, **changes})

    return make


@pytest.mark.parametrize("check", SANDBOX_CHECKS, ids=lambda check: check.__name__)
async def test_provider_keeps_the_contract(provider, make_spec, check, tmp_path, request):
    assert isinstance(provider, SandboxProvider)
    if check not in checks_for(provider):
        assert provider.name == "local" and needs_of(check) & {"isolation", "mounts", "limits"}
        return
    if "limits" in needs_of(check):
        request.getfixturevalue("may_limit")
    await check(provider, make_spec)
    assert await provider.list({}) == []
    assert list((tmp_path / "run" / provider.name).iterdir()) == [], "a state folder was left"
