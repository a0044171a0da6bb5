"""Containers keep the contract of sandboxes: with the agent, by plain exec, on docker and on podman."""

import itertools

import pytest

from inspan_core.sandbox import SandboxProvider, SandboxSpec
from inspan_runtime.providers.docker.provider import DockerProvider
from inspan_runtime.testing.sandbox_checks import SANDBOX_CHECKS, checks_for, needs_of

pytestmark = [pytest.mark.anyio, pytest.mark.docker, pytest.mark.timeout(240)]

# Where each way of working is likeliest to be wrong; all others are run by `make test-full`.
QUICK = {
    ("docker", "always"): {
        "arguments_arrive_unchanged",
        "environment_is_the_specifications",
        "servers_environment_is_not_there",
        "commands_start_in_workdir",
        "cancellation_kills_the_whole_group",
        "files_come_back_unchanged",
        "disconnect_leaves_it_alive",
        "racing_creates_of_a_key_are_one",
        "stop_ends_it_for_everybody",
        "time_to_live_ends_it",
        "usage_is_told",
    },
    ("docker", "never"): {
        "arguments_arrive_unchanged",
        "streams_are_apart_and_binary",
        "deadline_kills_the_whole_group",
        "cancellation_kills_the_whole_group",
        "exec_ends_with_its_own_process",
        "signals_have_their_usual_effect",
        "cancelled_upload_leaves_the_old_file",
        "upload_refuses_what_is_no_file",
        "download_is_bounded",
        "stop_ends_it_for_everybody",
        "time_to_live_ends_it",
    },
    ("podman", "always"): {"exit_codes_are_the_commands_own", "stop_ends_it_for_everybody"},
    ("podman", "never"): {"deadline_kills_the_whole_group"},
}
CASES = [
    pytest.param(
        kind,
        mode,
        check,
        id=f"{kind}-{'agent' if mode == 'always' else 'exec'}-{check.__name__}",
        marks=() if check.__name__ in quick else pytest.mark.full,
    )
    for (kind, mode), quick in QUICK.items()
    for check in SANDBOX_CHECKS
]


@pytest.fixture(params=["asyncio"])
def anyio_backend(request):
    return request.param


@pytest.mark.parametrize(("kind", "mode", "check"), CASES)
async def test_container_keeps_the_contract(kind, mode, check, request, tmp_path, mounted_interpreters):
    engine = request.getfixturevalue(f"{kind}_engine")
    provider = DockerProvider(
        {
            "engine": engine.name,
            "engine_options": list(engine.options),
            "agent": mode,
            "image": "inspan-busybox",
            "runtime_dir": str(tmp_path / "run"),
            "cache_dir": mounted_interpreters,
        }
    )
    assert isinstance(provider, SandboxProvider)
    numbers = itertools.count()

    def make_spec(**changes):
        return SandboxSpec(**{"workdir": f"/task folder/{next(numbers)}", "ttl_s": 120.0, **changes})

    if check not in checks_for(provider):
        assert needs_of(check) == {"usage"} and mode == "never"
        return
    await check(provider, make_spec)
    assert await provider.list({}) == []
    assert list((tmp_path / "run" / "docker").iterdir()) == [], "a state folder was left"
    assert engine.names() == [], "a container was left"


@pytest.mark.full
@pytest.mark.parametrize("anyio_backend", ["trio"], indirect=True)
@pytest.mark.parametrize("mode", ["always", "never"])
async def test_other_event_loop(mode, docker_engine, tmp_path, mounted_interpreters):
    provider = DockerProvider(
        {
            "engine_options": list(docker_engine.options),
            "agent": mode,
            "image": "inspan-busybox",
            "runtime_dir": str(tmp_path / "run"),
            "cache_dir": mounted_interpreters,
        }
    )
    for check in SANDBOX_CHECKS:
        if check.__name__ in QUICK["docker", mode]:
            await check(provider, lambda **changes: SandboxSpec(**{"workdir": "/task", **changes}))
    assert docker_engine.names() == []
