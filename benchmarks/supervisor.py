"""What supervision costs: start-up, stopping, memory, wake-ups. Prints a table.

.venv/bin/python benchmarks/supervisor.py [--runs 30] [--python PATH] [--provider local]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import anyio

from inspan_core.harness import SandboxCommand
from inspan_core.sandbox import Sandbox, SandboxSpec
from inspan_runtime import supervisor_client as client
from inspan_runtime.providers.builtin import inspan_sandbox_providers
from inspan_supervisor import LOADER, SUPERVISOR_FILE, supervisor_source

WAIT_S = 30.0
ENV = {"PATH": os.environ["PATH"]}


class Direct:
    """A supervisor started directly, without a provider in between."""

    def __init__(self, python: str, script: str, **fields: object) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="inspan-bench-")
        self.dir = Path(self.folder.name) / "session"
        self.dir.mkdir()
        (self.dir / SUPERVISOR_FILE).write_bytes(supervisor_source())
        command = {"argv": ["/bin/sh", "-c", script], "env": {**ENV, "DIR": self.folder.name},
                   "timeout_s": 60, "cleanup_timeout_s": 20, **fields}  # fmt: skip
        (self.dir / "command.json").write_text(json.dumps(command))
        argv = [python, "-I", "-S", "-c", LOADER, str(self.dir / SUPERVISOR_FILE), str(self.dir)]
        self.process = subprocess.Popen(argv)

    def until(self, check: Callable[[], object]) -> None:
        """Poll closely; a benchmark may."""
        deadline = time.monotonic() + WAIT_S
        while not check():
            if time.monotonic() > deadline:
                raise TimeoutError("the harness or its receipt did not come")

    def up(self) -> None:
        self.until((Path(self.folder.name) / "up").exists)

    def stop(self) -> float:
        """Milliseconds from the stop request to the receipt."""
        began = time.perf_counter()
        (self.dir / "stop.request").touch()
        self.until((self.dir / "cleanup.json").exists)
        return (time.perf_counter() - began) * 1000

    def status(self, name: str) -> int:
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) for line in text.splitlines() if line.startswith(name))

    def end(self) -> None:
        self.process.wait(WAIT_S)
        self.folder.cleanup()


def measure_stop(python: str, runs: int, children: int) -> list[float]:
    """Stop to receipt with `children` tools in sessions of their own; all must die."""
    found = []
    for _ in range(runs):
        script = f"for i in $(seq {children}); do setsid sleep 4242 & done; : > $DIR/up; exec sleep 4242"
        direct = Direct(python, script)
        direct.up()
        found.append(direct.stop())
        direct.end()
    return found


def measure_exit(python: str, runs: int) -> list[float]:
    """From the harness's last instruction to the receipt."""
    found = []
    for _ in range(runs):
        direct = Direct(python, ": > $DIR/up; while [ ! -e $DIR/go ]; do :; done")
        direct.up()
        began = time.perf_counter()
        (Path(direct.folder.name) / "go").touch()
        direct.until((direct.dir / "cleanup.json").exists)
        found.append((time.perf_counter() - began) * 1000)
        direct.end()
    return found


def measure_idle(python: str) -> tuple[float, float, float]:
    """Resident and proportional memory in MiB, and wake-ups a second."""
    direct = Direct(python, ": > $DIR/up; exec sleep 60")
    direct.up()
    wake_ups, began = direct.status("voluntary_ctxt_switches"), time.monotonic()
    time.sleep(4)
    rate = (direct.status("voluntary_ctxt_switches") - wake_ups) / (time.monotonic() - began)
    rollup = Path(f"/proc/{direct.process.pid}/smaps_rollup").read_text()
    proportional = next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    resident = direct.status("VmRSS")
    direct.stop()
    direct.end()
    return resident / 1024, proportional / 1024, rate


def measure_zombies(python: str) -> float:
    """The longest that an adopted zombie can have stood while 300 orphans end, in milliseconds.

    Each counts from the last look that did not find it, so the time between two looks is in it.
    """
    direct = Direct(
        python, ": > $DIR/up; for i in $(seq 300); do (setsid true &); done; : > $DIR/done; sleep 60"
    )
    direct.up()
    seen: dict[str, float] = {}
    oldest, done = 0.0, Path(direct.folder.name) / "done"
    now = time.perf_counter()
    while not done.exists():
        before, now, standing = now, time.perf_counter(), set()
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] == "Z" and int(fields[1]) == direct.process.pid:
                standing.add(name)
                oldest = max(oldest, time.perf_counter() - seen.setdefault(name, before))
        seen = {name: at for name, at in seen.items() if name in standing}
    direct.stop()
    direct.end()
    return oldest * 1000


async def measure_provider(kind: str, python: str, runs: int) -> tuple[list[float], list[float], list[float]]:
    """Through a provider: `true` bare, `true` supervised, and stop request to receipt, in milliseconds."""
    bare, supervised, stops = [], [], []
    with tempfile.TemporaryDirectory(prefix="inspan-bench-") as folder:
        provider = inspan_sandbox_providers()[kind]({})
        workdir = folder if kind == "local" else "/work"
        sandbox = await provider.create(SandboxSpec(workdir=workdir), key=f"bench-{os.getpid()}")
        try:
            for run in range(runs):
                began = time.perf_counter()
                await sandbox.exec(["true"], timeout_s=10)
                bare.append((time.perf_counter() - began) * 1000)

                home = f"{workdir}/sessions/{run}"
                await write(sandbox, home, workdir, ["true"], python)
                began = time.perf_counter()
                result = await sandbox.exec(client.supervised_launch_command(python, home), timeout_s=30)
                supervised.append((time.perf_counter() - began) * 1000)
                if result.exit_code != 0:
                    raise RuntimeError(f"the supervised run failed: {result}")

                home += "-stop"
                await write(sandbox, home, workdir, ["/bin/sleep", "60"], python)
                async with anyio.create_task_group() as group:
                    group.start_soon(launch, sandbox, client.supervised_launch_command(python, home))
                    wait = f"while [ ! -e '{home}/supervisor.pid' ]; do :; done"
                    await sandbox.exec(["sh", "-c", wait], timeout_s=10)
                    began = time.perf_counter()
                    await client.stop_and_confirm_cleanup(sandbox, home, timeout_s=20)
                    stops.append((time.perf_counter() - began) * 1000)
        finally:
            await sandbox.stop()
            await provider.aclose()
    return bare, supervised, stops


async def launch(sandbox: Sandbox, argv: list[str]) -> None:
    await sandbox.exec(argv, timeout_s=30)


async def write(sandbox: Sandbox, home: str, workdir: str, argv: list[str], python: str) -> None:
    await client.write_command(
        sandbox, home, SandboxCommand(argv=argv, python=python), cwd=workdir, timeout_s=30, grace_s=1,
        cleanup_timeout_s=5)  # fmt: skip


def row(what: str, values: list[float], unit: str, target: str) -> None:
    middle = statistics.median(values)
    high = statistics.quantiles(values, n=10)[-1] if len(values) > 1 else middle
    print(f"{what:58} {middle:8.1f} {high:8.1f} {unit:6} {target}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--python", default=os.path.realpath(sys.executable))
    parser.add_argument("--provider", default="local", choices=sorted(inspan_sandbox_providers()))
    options = parser.parse_args()
    python, runs = options.python, options.runs

    print(f"{'':58} {'median':>8} {'p90':>8} {'':6} target")
    # Isolating providers hide the home folders, and with them a virtual environment's interpreter.
    inside = python if options.provider == "local" else "/usr/bin/python3"
    bare, supervised, stops = anyio.run(measure_provider, options.provider, inside, runs)
    row(f"`true` through {options.provider}", bare, "ms", "")
    row("the same, supervised", supervised, "ms", "")
    overhead = [one - statistics.median(bare) for one in supervised]
    row("overhead of supervision", overhead, "ms", "<= 40")
    row(f"stop to receipt, through {options.provider}", stops, "ms", "<= 60")
    for children in (0, 50, 300):
        values = measure_stop(python, max(3, runs if children == 0 else runs // 3), children)
        row(f"stop to receipt, inside, {children} tools to drain", values, "ms", "" if children else "<= 15")
    row("exit to receipt, inside", measure_exit(python, runs), "ms", "<= 5")
    idle = list(zip(*(measure_idle(python) for _ in range(3)), strict=True))
    row("resident memory", list(idle[0]), "MiB", "<= 10")
    row("proportional memory", list(idle[1]), "MiB", "")
    row("wake-ups while idle", list(idle[2]), "1/s", "< 2")
    storms = [measure_zombies(python) for _ in range(max(3, runs // 6))]
    row("oldest zombie while 300 orphans end", storms, "ms", "< 100")


if __name__ == "__main__":
    main()
