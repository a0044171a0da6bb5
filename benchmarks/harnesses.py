"""What each installed harness costs in an isolated sandbox: installation, seed, start, memory, close.

.venv/bin/python benchmarks/harnesses.py [NAME ...] [--runs 5] [--cold]

With --cold the runtime is also downloaded into an empty cache. Everything else uses the user's cache, which
is filled first. Medians in milliseconds: ``unpack`` is a seed with the archive there and nothing unpacked,
``seed`` one with all there, ``check`` the program's own health check by itself, ``added`` what the seed takes
beyond that, ``1st call`` from the activation to the first call of the model, ``close`` while that is silent.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from importlib import metadata
from pathlib import Path

import anyio
import anyio.to_thread
from attrs import define, field

from inspan_core.errors import HarnessError
from inspan_core.plugins import load_plugins
from inspan_core.sandbox import Sandbox
from inspan_runtime.install_build import package_client_env
from inspan_runtime.install_cache import RuntimeCache, default_cache_dir
from inspan_runtime.testing.harness_case import HarnessCase
from inspan_runtime.testing.harness_episode import Episode
from inspan_runtime.testing.scripted_model import Reply

ASKED_LIMIT_S = 120.0
CLOSE_TIMEOUT_S = 60.0
COUNT = "ls /proc | grep -c '^[0-9]'"


@define
class Figures:
    """What was measured of one harness, in milliseconds unless named otherwise."""

    cold: float | None = None
    unpack: list[float] = field(factory=list)
    seed: list[float] = field(factory=list)
    health: list[float] = field(factory=list)
    first_call: list[float] = field(factory=list)
    close: list[float] = field(factory=list)
    processes: list[float] = field(factory=list)
    peak_mib: list[float] = field(factory=list)


def plugin_of(name: str) -> object:
    """The module of an installed harness."""
    points = metadata.entry_points(group="inspan")
    return next(point.load() for point in points if point.name == name)


@asynccontextmanager
async def begun(name: str, cache: RuntimeCache) -> AsyncIterator[Episode]:
    """A seeded session of the harness, its model silent."""
    with tempfile.TemporaryDirectory(prefix="inspan-bench-") as folder:
        case = HarnessCase(plugin=plugin_of(name), folder=Path(folder), sandbox="bubblewrap", cache=cache)
        async with case.episode(Reply(is_silent=True)) as episode:
            yield episode


async def measure(name: str, cache: RuntimeCache, figures: Figures) -> None:
    """One session: seed, check, run to the first call, close."""
    async with begun(name, cache) as episode:
        sandbox, asked = episode.sandbox, episode.model.asked
        figures.seed.append(episode.install_s * 1000)
        figures.health.append(episode.common["installer"].checking_s * 1000)
        before = int((await sandbox.exec(["sh", "-c", COUNT], timeout_s=30)).stdout)

        async def execute() -> None:
            with suppress(HarnessError):  # It is closed.
                await episode.session.execute(
                    stage_activation=episode.stage,
                    collect=episode.collect,
                    timeout=600,
                    close_timeout=CLOSE_TIMEOUT_S,
                )

        async with anyio.create_task_group() as tasks:
            started = time.monotonic()
            tasks.start_soon(execute)
            if not await anyio.to_thread.run_sync(asked.wait, ASKED_LIMIT_S):
                raise TimeoutError(f"{name} did not call the model")
            figures.first_call.append((time.monotonic() - started) * 1000)
            after = int((await sandbox.exec(["sh", "-c", COUNT], timeout_s=30)).stdout)
            figures.processes.append(after - before)
            figures.peak_mib.append(await peak_mib(sandbox))
            started = time.monotonic()
            await episode.session.close(timeout=CLOSE_TIMEOUT_S)
            figures.close.append((time.monotonic() - started) * 1000)


async def peak_mib(sandbox: Sandbox) -> float:
    """The largest resident sizes of the processes inside, added up: what is shared counts for each."""
    script = "cat /proc/[0-9]*/status 2>/dev/null | grep VmHWM"
    said = (await sandbox.exec(["sh", "-c", script], timeout_s=30)).stdout.decode()
    return sum(int(line.split()[1]) for line in said.splitlines()) / 1024


async def unpack_ms(name: str, cache: RuntimeCache) -> float:
    """A seed with the archive there and nothing unpacked."""
    with tempfile.TemporaryDirectory(prefix="inspan-bench-cache-", dir=cache.root.parent) as folder:
        archives = Path(folder) / "archives"
        archives.mkdir()
        for path in (cache.root / "archives").glob(f"{name}-*"):
            os.link(path, archives / path.name) if path.suffix == ".tar" else shutil.copy2(path, archives)
        fresh = RuntimeCache(Path(folder), client_env=package_client_env(os.environ))
        async with begun(name, fresh) as episode:
            return episode.install_s * 1000


async def cold_ms(name: str) -> float:
    """A seed with nothing there: download, verification, archive, unpacking, check."""
    with tempfile.TemporaryDirectory(prefix="inspan-bench-cache-") as folder:
        empty = RuntimeCache(Path(folder), client_env=package_client_env(os.environ))
        async with begun(name, empty) as episode:
            return episode.install_s * 1000


def median(values: list[float]) -> str:
    return f"{statistics.median(values):9.0f}" if values else f"{'-':>9}"


async def main(names: list[str], runs: int, is_cold: bool) -> None:
    cache = RuntimeCache(default_cache_dir(os.environ), client_env=package_client_env(os.environ))
    heads = ("cold", "unpack", "seed", "check", "added", "1st call", "close", "processes", "peak MiB")
    print(f"{'harness':<10}" + "".join(f"{head:>10}" for head in heads))
    for name in names:
        figures = Figures()
        async with begun(name, cache):
            pass  # Whatever is missing in the cache is there afterwards.
        if is_cold:
            figures.cold = await cold_ms(name)
        for _ in range(min(runs, 3)):
            figures.unpack.append(await unpack_ms(name, cache))
        for _ in range(runs):
            await measure(name, cache, figures)
        added = [seed - health for seed, health in zip(figures.seed, figures.health, strict=True)]
        columns = [[] if figures.cold is None else [figures.cold], figures.unpack, figures.seed]
        columns += [figures.health, added, figures.first_call, figures.close]
        columns += [figures.processes, figures.peak_mib]
        print(f"{name:<10}" + "".join(f" {median(column)}" for column in columns), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="harnesses; default: all that are installed")
    parser.add_argument("--runs", type=int, default=5, metavar="N")
    parser.add_argument("--cold", action="store_true", help="also install into an empty cache")
    arguments = parser.parse_args()
    chosen = arguments.names or list(load_plugins().harness_names())
    anyio.run(main, chosen, arguments.runs, arguments.cold)
