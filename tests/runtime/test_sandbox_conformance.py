"""The embedded providers keep the contract that `inspan_runtime.testing.sandbox_checks` spells out."""

import itertools

import pytest

from inspan_core.sandbox import SandboxProvider, SandboxSpec
from inspan_runtime.providers.bubblewrap import BubblewrapProvider
from inspan_runtime.providers.local import LocalProvider
from inspan_runtime.testing.sandbox_boundary_checks import BOUNDARY_CHECKS
from inspan_runtime.testing.sandbox_checks import SANDBOX_CHECKS, checks_for, needs_of

pytestmark = [pytest.mark.anyio, pytest.mark.sandbox]
# The kinds share what depends on the event loop, so one of them is enough for the other loop.
WHOLE = [("local", "asyncio"), ("bubblewrap", "asyncio")]
# Where another loop, or a root that is read-only, is likeliest to be wrong; `make test-full` runs all.
PARTS = {
    ("local", "trio"): {
        "streams_are_apart_and_binary",
        "deadline_kills_the_whole_group",
        "cancellation_kills_the_whole_group",
        "one_cancellation_is_nobody_elses",
        "commands_run_at_the_same_time",
        "cancelled_upload_leaves_the_old_file",
        "transfers_do_not_mix",
        "host_file_is_streamed",
        "racing_creates_of_a_key_are_one",
        "cancelled_create_leaves_nothing",
        "stop_interrupts_a_running_command",
        "racing_stops_all_succeed",
    },
    ("read-only", "asyncio"): {
        "home_is_empty_and_writable",
        "commands_start_in_workdir",
        "upload_makes_parents_and_sets_the_mode",
        "replacing_is_atomic",
        "stop_leaves_no_process",
        *(check.__name__ for check in BOUNDARY_CHECKS),
    },
}
CASES = [
    pytest.param(
        cell,
        check,
        id=f"{'-'.join(cell)}-{check.__name__}",
        marks=() if cell in WHOLE or check.__name__ in PARTS[cell] else pytest.mark.full,
    )
    for cell in (*WHOLE, *PARTS)
    for check in SANDBOX_CHECKS
]


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
        return SandboxSpec(**{"workdir": f"{below}/tasks/{next(numbers)}", "ttl_s": 120.0, **changes})

    return make


@pytest.mark.parametrize(("cell", "check"), CASES)
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
