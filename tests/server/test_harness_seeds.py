"""Sixteen seeds at once through a real Agent Server whose cache is cold."""

from __future__ import annotations

from pathlib import Path

import anyio
import httpx
import pytest
from starlette.applications import Starlette

import inspan_echo
from inspan_core.harness import RuntimeKey
from inspan_core.hookspecs import hookimpl
from inspan_core.plugins import load_plugins
from inspan_core.relay import HARNESS_HOOKS
from inspan_runtime.install_cache import RuntimeCache
from inspan_runtime.providers import builtin
from inspan_server.agent.app import create_app
from inspan_server.agent.config_reading import parse_config
from inspan_server.serving import served

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

SEEDS = 16
FILES = 200


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
async def model_url():
    """Nobody calls the model, but seeds see that it can be reached."""
    async with served(Starlette(), graceful_timeout_s=1) as url:
        yield url


def installing(builds):
    """Echo with a runtime of many files, whose check reads the last of them."""

    async def build(folder):
        builds.append(folder.path)
        for number in range(FILES):
            Path(folder.path, f"file-{number}").write_text("x" * 1000)
        Path(folder.path, "program").write_text("#!/bin/sh\necho tiny 1\n")
        Path(folder.path, "program").chmod(0o755)

    async def inspan_install(context):
        installer = context.installer
        target = await installer.target()
        key = RuntimeKey(harness="echo", version="1", os=target.os, arch=target.arch, libc=target.libc)
        check = {"health": ["{prefix}/program"], "expect": "tiny 1"}
        prefix = installer.prefix(key)
        if not await installer.healthy(prefix, **check):
            prefix = await installer.publish(key, await installer.archive(key, build), **check)
        return {"python": target.python, "prefix": prefix}

    hooks = {name: staticmethod(getattr(inspan_echo, name)) for name in ("inspan_harness", *HARNESS_HOOKS)}
    hooks["inspan_install"] = staticmethod(hookimpl(inspan_install))
    return type("Installing", (), hooks)()


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("bubblewrap", marks=pytest.mark.sandbox),
        pytest.param("local", marks=pytest.mark.full),
    ],
)
async def test_one_builds_and_unpacks_and_all_are_served(tmp_path, kind, model_url):
    (tmp_path / "work").mkdir()
    config = parse_config(
        {
            "harness": "echo",
            "model_server": {"base_url": model_url, "name": "policy"},
            "sandbox_provider": "box",
            "sandbox_config": {"workdir": str(tmp_path / "work") if kind == "local" else "/workspace"},
            "sandbox_providers": {"box": {"kind": kind}},
            "runtime_cache_dir": str(tmp_path / "cache"),
            "harness_options": {"model": False},
        }
    )
    builds: list[str] = []
    plugins = load_plugins([builtin, installing(builds)], entry_points=False)
    answers: dict[str, tuple[int, int, str]] = {}

    def body(session):
        episode = {"rollout_id": session, "attempt": 0}
        return {"agent_session_id": session, "episode_id": episode}

    async with served(create_app(config, plugins), graceful_timeout_s=5) as url:

        async def live(session):
            task = {"task_id": {"taskset": "t", "task_id": "x"}}
            async with httpx.AsyncClient(base_url=url, timeout=100) as client:
                seeded = await client.post("/v1/agent_sessions", json={**body(session), **task})
                closed = await client.post("/v1/agent_sessions/close", json=body(session))
            answers[session] = (seeded.status_code, closed.status_code, seeded.text[:300])

        async with anyio.create_task_group() as tasks:
            for number in range(SEEDS):
                tasks.start_soon(live, f"s{number}")
    assert {each[:2] for each in answers.values()} == {(200, 200)}, answers
    assert len(builds) == 1
    cache = RuntimeCache(tmp_path / "cache", client_env={})
    (key,) = cache.shared.keys()
    assert cache.shared.is_intact(key) and not cache.shared.is_leased(key)
    assert len(list((cache.shared.folder / key).glob("file-*"))) == FILES
    assert [path.name for path in cache.shared.folder.glob(".*")] == [".inspan-host"]
