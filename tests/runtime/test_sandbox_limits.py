"""Limits of processor, memory and processes: bubblewrap keeps them, `local` refuses them."""

import os
import signal
from functools import partial
from pathlib import Path

import pytest

from inspan_core.errors import ConfigError, ProviderUnavailable
from inspan_core.sandbox import SandboxSpec
from inspan_runtime.providers.bubblewrap import BubblewrapProvider
from inspan_runtime.providers.exec_agent.memory import MemoryWatch, open_watch
from inspan_runtime.providers.keeper.cgroups import Group, NoLimit, places, settings
from inspan_runtime.providers.local import LocalProvider
from inspan_runtime.testing.sandbox_check_support import becomes_true, opened, out, sh

LIMITS = {"cpu": 0.5, "memory_mib": 64, "pids": 40}
VERSION_1 = """\
31 24 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid - cgroup cgroup rw,cpu,cpuacct
32 24 0:28 / /sys/fs/cgroup/memory rw,nosuid - cgroup cgroup rw,memory
33 24 0:29 /docker/abc /sys/fs/cgroup/pids rw,nosuid - cgroup cgroup rw,pids
34 24 0:30 / /sys/fs/cgroup/systemd rw,nosuid - cgroup cgroup rw,name=systemd
35 24 0:31 / /proc rw - proc proc rw
"""
OWN_1 = "4:cpu,cpuacct:/a\n3:memory:/a/b\n2:pids:/docker/abc/c\n1:name=systemd:/\n0::/\n"


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def provider(tmp_path):
    return BubblewrapProvider({"runtime_dir": str(tmp_path / "run")})


def spec(**changes):
    return SandboxSpec(**{"workdir": "/task", "ttl_s": 120.0, **changes})


def groups_of(name):
    return [path for path in Path("/sys/fs/cgroup").rglob(name) if path.is_dir()]


@pytest.mark.anyio
@pytest.mark.sandbox
class TestBubblewrap:
    async def test_memory_that_runs_out_is_told(self, provider, may_limit):
        async with opened(provider, partial(spec, memory_mib=64)) as sandbox:
            assert not (await sh(sandbox, "true")).out_of_memory
            hungry = "head -c 200000000 /dev/zero | tail -c 190000000 | wc -c"
            result = await sh(sandbox, hungry, timeout_s=50.0)
            assert result.out_of_memory and result.stdout == b"0\n"
            after = await sh(sandbox, "echo on")
            assert (after.stdout, after.out_of_memory) == (b"on\n", False), "the sandbox did not outlive it"

    async def test_what_is_written_counts_as_memory(self, provider, may_limit):
        async with opened(provider, partial(spec, memory_mib=64)) as sandbox:
            result = await sh(sandbox, "head -c 200000000 /dev/zero >/task/file", timeout_s=50.0)
            assert result.exit_code != 0 and result.out_of_memory

    async def test_processes_are_counted(self, provider, may_limit):
        async with opened(provider, partial(spec, pids=30)) as sandbox:
            result = await sh(sandbox, "for n in $(seq 60); do sleep 5 & done; wait", timeout_s=50.0)
            assert result.exit_code != 0 and b"fork" in result.stderr
            assert await out(sandbox, "echo on", timeout_s=50.0) == b"on\n"

    async def test_processors_time_is_the_groups(self, provider, may_limit):
        async with opened(provider, partial(spec, cpu=0.25)) as sandbox:
            (group,) = [one for one in groups_of(sandbox.sandbox_id) if is_of_cpu(one)]
            found = [int(one) for one in quota_of(group)]
            assert found[0] / found[1] == 0.25

    async def test_groups_go_with_the_sandbox(self, provider, may_limit):
        async with opened(provider, partial(spec, **LIMITS)) as sandbox:
            assert groups_of(sandbox.sandbox_id)
            await sh(sandbox, "setsid sleep 100 & sleep 100 &")
        assert groups_of(sandbox.sandbox_id) == []

    async def test_groups_of_a_killed_keeper_are_swept(self, provider, may_limit):
        sandbox = await provider.create(spec(**LIMITS), key="k")
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and link_of(entry / "cwd") == sandbox.descriptor["state"]:
                os.kill(int(entry.name), signal.SIGKILL)

        async def swept():
            await provider.list({})
            return groups_of(sandbox.sandbox_id) == []

        await becomes_true(swept, "control groups of a killed keeper were left")

    async def test_no_limit_is_no_group(self, provider):
        async with opened(provider, spec) as sandbox:
            assert groups_of(sandbox.sandbox_id) == []

    async def test_limits_are_inside_too(self, provider, may_limit):
        """The read-only root that an ordinary user gets is limited likewise."""
        read_only = BubblewrapProvider(
            {"runtime_dir": str(provider._kept.runtime_dir), "writable_root": False}
        )
        async with opened(read_only, partial(spec, pids=30)) as sandbox:
            assert (
                await sh(sandbox, "for n in $(seq 60); do sleep 5 & done; wait", timeout_s=50.0)
            ).exit_code


def link_of(path):
    try:
        return os.readlink(path)
    except OSError:
        return None


def is_of_cpu(group):
    return (group / "cpu.max").exists() or (group / "cpu.cfs_quota_us").exists()


def quota_of(group):
    if (group / "cpu.max").exists():
        return (group / "cpu.max").read_text().split()
    return [(group / "cpu.cfs_quota_us").read_text(), (group / "cpu.cfs_period_us").read_text()]


@pytest.mark.anyio
@pytest.mark.parametrize("limit", LIMITS)
async def test_local_refuses_what_it_cannot_keep(limit, tmp_path):
    options = {"runtime_dir": str(tmp_path / "run")}
    limited = spec(workdir=str(tmp_path / "work"), **{limit: LIMITS[limit]})
    with pytest.raises(ConfigError, match=f"^{limit}: .*cannot limit"):
        await LocalProvider(options).create(limited, key="k")
    async with opened(LocalProvider({**options, "ignore_limits": True}), lambda: limited) as sandbox:
        assert await out(sandbox, "echo on") == b"on\n"


@pytest.mark.anyio
@pytest.mark.parametrize("limit", LIMITS)
async def test_limits_of_nothing_are_named(limit, provider):
    with pytest.raises(ConfigError, match=f"^{limit}: 0 is not greater"):
        await provider.create(spec(**{limit: 0}), key="k")


def test_places_in_version_1_are_below_the_own_groups():
    """Joined controllers are one group; a hierarchy that is mounted from the middle on is cut there."""
    assert places(LIMITS, VERSION_1, OWN_1) == [
        (1, "/sys/fs/cgroup/cpu,cpuacct/a", ["cpu"]),
        (1, "/sys/fs/cgroup/memory/a/b", ["memory"]),
        (1, "/sys/fs/cgroup/pids/c", ["pids"]),
    ]


def unified(folder, groups):
    """A tree like that of version 2: {path: (controllers it has, controllers it hands down)}."""
    for path, (has, hands) in groups.items():
        made = folder / path
        made.mkdir(parents=True, exist_ok=True)
        (made / "cgroup.controllers").write_text(has)
        (made / "cgroup.subtree_control").write_text(hands)
    return f"31 24 0:27 / {folder} rw - cgroup2 cgroup2 rw,nsdelegate\n"


def test_place_in_version_2_is_where_controllers_are_handed_down(tmp_path):
    every = "cpu memory pids"
    mounts = unified(
        tmp_path, {"": (every, every), "system": (every, "memory"), "system/server": ("memory", "")}
    )
    own = "0::/system/server\n"
    assert places({"memory_mib": 1}, mounts, own) == [(2, str(tmp_path / "system"), ["memory"])]
    assert places(LIMITS, mounts, own) == [(2, str(tmp_path), ["cpu", "memory", "pids"])]


def test_own_group_of_version_2_hands_down_when_it_may(tmp_path):
    mounts = unified(tmp_path, {"": ("cpu memory pids", "")})
    assert places(LIMITS, mounts, "0::/\n") == [(2, str(tmp_path), ["cpu", "memory", "pids"])]
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpu +memory +pids"


@pytest.mark.parametrize("has", ["", "cpu memory"])
def test_controllers_that_are_missing_are_named(has, tmp_path):
    mounts = unified(tmp_path, {"": (has, has), "a": (has, "")})
    with pytest.raises(NoLimit, match="pids"):
        places({"pids": 1}, mounts, "0::/a\n")
    with pytest.raises(NoLimit, match="memory"):
        places({"memory_mib": 1}, "", "0::/a\n")


def test_groups_of_version_2_are_made_and_set(tmp_path):
    """As far as a plain folder tells: the kernel makes the files there that are written to."""
    wanted = [name for controller in ("cpu", "memory", "pids") for name in settings(2, controller, LIMITS)]
    assert wanted == [
        ("cpu.max", "50000 100000", True),
        ("memory.max", str(64 * 2**20), True),
        ("memory.swap.max", "0", False),
        ("pids.max", "40", True),
    ]
    with pytest.raises(NoLimit, match="cannot be made"):
        Group("name", LIMITS, [(2, str(tmp_path / "missing"), ["memory"])]).make()


@pytest.mark.anyio
async def test_host_that_cannot_limit_is_unavailable(provider, may_limit, tmp_path):
    """A group of the wanted name that somebody else has made."""
    async with opened(provider, partial(spec, pids=50), key="k") as sandbox:
        (group,) = groups_of(sandbox.sandbox_id)
    group.mkdir()
    try:
        with pytest.raises(ProviderUnavailable, match=r"limits: .*cannot be made"):
            await provider.create(spec(pids=50), key="k")
    finally:
        if group.exists():
            group.rmdir()
    assert list((tmp_path / "run" / "bubblewrap").iterdir()) == []


def test_kills_are_read_from_either_version(tmp_path):
    for number, text in enumerate(
        ("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n", "low 0\noom 5\noom_kill 3\noom_group_kill 0\n")
    ):
        file = tmp_path / str(number)
        file.write_text(text)
        watch = open_watch([os.fsencode(tmp_path / "missing"), os.fsencode(file)])
        assert watch.kills() == 3
        file.write_text(text.replace("oom_kill 3", "oom_kill 4"))
        assert watch.kills() == 4
    assert MemoryWatch(None).kills() == 0 == open_watch([]).kills()
