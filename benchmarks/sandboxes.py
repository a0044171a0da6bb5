"""How long sandboxes take: ``python benchmarks/sandboxes.py [--provider NAME] [--count N] [--json]``.

Medians of N sandboxes, created one after the other: create to first exec, exec of `true`, upload of 10 MB,
stop; then how much memory one takes, how fast a 300 MB file is uploaded, a forwarded GET and its throughput,
and 200 sandboxes that live at the same time: how many are created and stopped in a second, what is left.
Containers are measured on a private engine, beside the same steps by the engine's own command line, and
without what needs a Python inside.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio

from inspan_core.sandbox import Sandbox, SandboxProvider, SandboxSpec
from inspan_runtime.providers.bubblewrap import BubblewrapProvider
from inspan_runtime.providers.docker.engine import needed_limits
from inspan_runtime.providers.docker.provider import DockerProvider
from inspan_runtime.providers.local import LocalProvider
from inspan_runtime.testing.private_engine import (
    IMAGE,
    NoEngine,
    PrivateEngine,
    private_docker,
    private_podman,
)

PROVIDERS: dict[str, Callable[[dict[str, Any]], SandboxProvider]] = {
    "local": LocalProvider,
    "bubblewrap": BubblewrapProvider,
}
EXECS = 20
UPLOAD = os.urandom(10_000_000)
BIG_FILE_BYTES = 300_000_000
STREAM_BYTES = 200_000_000
TOGETHER = 200
AT_ONCE = 16
SAMPLE = 20
CONTAINER_TARGET_MS_FACTOR = 1.3
STEPS = ("create_to_first_exec_ms", "exec_ms", "upload_10_mb_ms", "stop_ms")
ENGINES = {"docker": private_docker, "podman": private_podman}
TARGETS = {
    "create_to_first_exec_ms": "at most 60",
    "exec_ms": "at most 3",
    "upload_10_mb_ms": "at most 40",
    "stop_ms": "at most 20",
    "memory_mib": "at most 16",
    "many_alive": f"{TOGETHER}",
    "created_per_s": "at least 15",
    "many_left": "0",
}
FETCH = """
import socket, sys, time
port, size = int(sys.argv[1]), int(sys.argv[2])
times = []
for _ in range(30):
    started = time.perf_counter()
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(b"1\\n")
        sock.recv(1)
    times.append(time.perf_counter() - started)
started = time.perf_counter()
with socket.create_connection(("127.0.0.1", port)) as sock:
    sock.sendall(b"%d\\n" % size)
    got = 0
    while data := sock.recv(1 << 20):
        got += len(data)
assert got == size, got
print(sorted(times)[15] * 1000, size / 1e6 / (time.perf_counter() - started))
"""


async def timed(action: Callable[[], Awaitable[Any]]) -> tuple[float, Any]:
    """Return (milliseconds, result)."""
    started = time.perf_counter()
    result = await action()
    return (time.perf_counter() - started) * 1000, result


async def one_life(provider: SandboxProvider, spec: SandboxSpec, key: str) -> dict[str, float]:
    """Measure one sandbox from its creation to its stop."""

    async def born() -> Sandbox:
        sandbox = await provider.create(spec, key=key)
        await sandbox.exec(["true"], timeout_s=20)
        return sandbox

    create_ms, sandbox = await timed(born)
    execs = [(await timed(lambda: sandbox.exec(["true"], timeout_s=20)))[0] for _ in range(EXECS)]
    upload_ms, _ = await timed(lambda: sandbox.upload(f"{spec.workdir}/file", UPLOAD))
    stop_ms, _ = await timed(sandbox.stop)
    return {
        "create_to_first_exec_ms": create_ms,
        "exec_ms": statistics.median(execs),
        "upload_10_mb_ms": upload_ms,
        "stop_ms": stop_ms,
    }


def resident_mib(pids: list[int]) -> float:
    """Return the proportional set size of processes."""
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1])
    return total / 1024


def own_processes(state: str) -> list[int]:
    """Return the keeper of a sandbox and its descendants."""
    parents: dict[int, int] = {}
    keeper = None
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_bytes().rsplit(b")", 1)[1].split()[1])
                is_keeper = (entry / "comm").read_text(encoding="utf-8") == "inspan-keeper\n"
                if is_keeper and os.readlink(entry / "cwd") == state:
                    keeper = int(entry.name)
            except OSError:
                continue
    found = [keeper] if keeper is not None else []
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


async def measure_more(provider: SandboxProvider, spec: SandboxSpec) -> dict[str, float]:
    """Measure memory, a big upload and a forward."""
    port, close = serve()
    sandbox = await provider.create(
        SandboxSpec(workdir=spec.workdir, reach=(f"http://127.0.0.1:{port}",)), key="benchmark more"
    )
    try:
        memory = resident_mib(own_processes(sandbox.descriptor["state"]))
        with tempfile.NamedTemporaryFile() as file:
            file.truncate(BIG_FILE_BYTES)
            upload_ms, _ = await timed(lambda: sandbox.upload_file(f"{spec.workdir}/big", file.name))
        argv = [sandbox.descriptor["python"], "-I", "-c", FETCH, str(port), str(STREAM_BYTES)]
        result = await sandbox.exec(argv, timeout_s=60)
        get_ms, megabytes_per_s = (float(one) for one in result.stdout.split())
    finally:
        await sandbox.stop()
        close()
    return {
        "memory_mib": memory,
        "upload_300_mb_ms": upload_ms,
        "forwarded_get_ms": get_ms,
        "forwarded_mb_per_s": megabytes_per_s,
    }


def serve() -> tuple[int, Callable[[], None]]:
    """Serve as many bytes as a line asks for, on a loopback port."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    block = bytes(1 << 20)

    def answer(connection: socket.socket) -> None:
        with connection:
            left = int(connection.recv(100))
            while left:
                left -= connection.send(block[: min(left, len(block))])

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()

    def close() -> None:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()

    return listener.getsockname()[1], close


async def many_alive(provider: SandboxProvider, spec: SandboxSpec, folder: str) -> dict[str, float]:
    """Measure many sandboxes that live at the same time, from the first create to the last stop."""
    limiter = anyio.CapacityLimiter(AT_ONCE)
    made: list[Sandbox] = []

    async def create(number: int) -> None:
        async with limiter:
            sandbox = await provider.create(spec, key=f"benchmark {number}")
            await sandbox.exec(["true"], timeout_s=60)
            made.append(sandbox)

    async def stop(number: int) -> None:
        async with limiter:
            await made[number].stop()

    async def all_of(work: Callable[[int], Awaitable[None]]) -> None:
        async with anyio.create_task_group() as group:
            for number in range(TOGETHER):
                group.start_soon(work, number)

    created_ms, _ = await timed(lambda: all_of(create))
    alive = len(await provider.list({}))
    memory = sum(resident_mib(own_processes(one.descriptor["state"])) for one in made[:SAMPLE]) / SAMPLE
    stopped_ms, _ = await timed(lambda: all_of(stop))
    return {
        "many_alive": alive,
        "created_per_s": TOGETHER / created_ms * 1000,
        "memory_of_many_mib": memory,
        "stopped_per_s": TOGETHER / stopped_ms * 1000,
        "many_left": len(os.listdir(f"{folder}/run/{provider.name}")),
    }


async def measure(name: str, count: int) -> dict[str, float]:
    """Return the figures of one provider."""
    with tempfile.TemporaryDirectory(prefix="inspan-benchmark-") as folder:
        provider = PROVIDERS[name]({"runtime_dir": f"{folder}/run"})
        spec = SandboxSpec(workdir=f"{folder}/work" if name == "local" else "/task/work")
        lives = [await one_life(provider, spec, f"benchmark {number}") for number in range(count)]
        figures = {what: statistics.median(life[what] for life in lives) for what in lives[0]}
        figures |= await measure_more(provider, spec)
        figures |= await many_alive(provider, spec, folder)
        await provider.aclose()
    return figures


def by_hand(engine: PrivateEngine, folder: str, name: str) -> dict[str, float]:
    """Measure the steps of one container by the engine's own command line."""
    Path(folder, "file").write_bytes(UPLOAD)
    limits = needed_limits() if engine.name == "podman" else []
    times = [time.perf_counter()]
    engine.run("run", "--detach", "--rm", f"--name={name}", "--network=none", *limits, IMAGE, "sleep", "600")
    engine.run("exec", name, "true")
    times.append(time.perf_counter())
    engine.run("exec", name, "true")
    times.append(time.perf_counter())
    engine.run("cp", f"{folder}/file", f"{name}:/tmp/file")
    times.append(time.perf_counter())
    engine.run("rm", "--force", *(["--time=0"] if engine.name == "podman" else []), name)
    times.append(time.perf_counter())
    took = [(after - before) * 1000 for before, after in itertools.pairwise(times)]
    return dict(zip(STEPS, took, strict=True))


async def measure_containers(engine: PrivateEngine, count: int, agent: str) -> dict[str, float]:
    """Return the figures of containers with (``always``) or without (``never``) the agent."""
    with tempfile.TemporaryDirectory(prefix="inspan-benchmark-") as folder:
        provider = DockerProvider(
            {
                "engine": engine.name,
                "engine_options": list(engine.options),
                "image": IMAGE,
                "agent": agent,
                "runtime_dir": f"{folder}/run",
                "cache_dir": f"{folder}/interpreters",
            }
        )
        spec = SandboxSpec(workdir="/task/work")
        await (
            await provider.create(spec, key="first")
        ).stop()  # The interpreter is made once, with the first.
        lives, hands = [], []
        for number in range(count):  # In turns, so that both see the same machine.
            lives.append(await one_life(provider, spec, f"benchmark {number}"))
            hands.append(await anyio.to_thread.run_sync(by_hand, engine, folder, f"by-hand-{number}"))
        figures = {what: statistics.median(life[what] for life in lives) for what in STEPS}
        figures |= {f"by_hand_{what}": statistics.median(hand[what] for hand in hands) for what in STEPS}
    return figures


def measure_engine(name: str, count: int) -> dict[str, dict[str, float]]:
    """Return the figures of one engine, with and without the agent; without an engine it says so."""
    try:
        with ENGINES[name]() as engine:
            return {
                f"{name} {what}": anyio.run(measure_containers, engine, count, agent)
                for what, agent in (("with the agent", "always"), ("by exec", "never"))
            }
    except NoEngine as error:
        print(f"{name}: LEFT OUT: {error}", file=sys.stderr)
        return {}


def print_containers(name: str, figures: dict[str, float], count: int) -> None:
    """Print a table of containers."""
    print(f"{name}: medians of {count}, load {os.getloadavg()[0]:.1f}")
    for what in STEPS:
        own, hand = figures[what], figures[f"by_hand_{what}"]
        note = f"(by hand {hand:.0f}, target {hand * CONTAINER_TARGET_MS_FACTOR:.0f})"
        print(f"  {what:26} {own:9.2f}  {note}")


def main() -> None:
    parser = argparse.ArgumentParser(description="How long sandboxes take.")
    parser.add_argument("--provider", choices=sorted([*PROVIDERS, *ENGINES]), action="append")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found: dict[str, dict[str, float]] = {}
    for name in options.provider or sorted([*PROVIDERS, "docker"]):
        if name in ENGINES:
            found |= measure_engine(name, options.count)
        else:
            found[name] = anyio.run(measure, name, options.count)
    if options.json:
        print(json.dumps(found))
        return
    for name, figures in found.items():
        if name not in PROVIDERS:
            print_containers(name, figures, options.count)
            continue
        print(f"{name}: medians of {options.count}, load {os.getloadavg()[0]:.1f}")
        for what, value in figures.items():
            target = f"  (target: {TARGETS[what]})" if what in TARGETS else ""
            print(f"  {what:26} {value:9.2f}{target}")


if __name__ == "__main__":
    main()
