"""What the Agent Server itself costs: a do-nothing harness on in-memory sandboxes, over real HTTP.

    python benchmarks/server.py             everything, some minutes
    python benchmarks/server.py --quick     a tenth of it

Printed: sessions a second (seed, activate, close) and their latencies for 1 and 50 clients, with the journal
and without, beside `baseline_fastapi.py` in the same run and the figures of NeMo Gym 0.7.0 on the same class
of machine; processor time of a session, also without sockets; memory of a live and of a closed one; the time
to take 1,000 open sessions over; and how the cost of a session grows from 100 to 10,000 open ones. Clients
are another process, but for what has no sockets.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agent_load.client import Load, play
from attrs import define

HERE = Path(__file__).resolve().parent
GYM = {1: 300.0, 50: 220.0}
"""NeMo Gym 0.7.0: sessions a second by clients, without durability; 3.2 kB per live session."""

GYM_CPU_MS = {1: 3.2, 50: 4.5}
START_TIMEOUT_S = 60.0


@define
class Server:
    """A server process."""

    process: subprocess.Popen[str]
    port: int

    @property
    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def memory_bytes(self) -> int:
        text = Path(f"/proc/{self.process.pid}/smaps_rollup").read_text()
        return 1024 * next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))


@contextmanager
def server(script: str, *arguments: str) -> Iterator[Server]:
    """Start a server of this folder, and kill it in the end: nothing of it is kept but its journal."""
    environment = {**os.environ, "PYTHONPATH": f"{HERE}:{os.environ.get('PYTHONPATH', '')}"}
    argv = [sys.executable, str(HERE / script), *arguments]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        if not url:
            raise RuntimeError(f"{script} did not start")
        yield Server(process, int(url.rpartition(":")[2]))
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def measure(at: Server, sessions: int, clients: int) -> tuple[Load, float]:
    """The best of three rounds, and its processor time of a session in milliseconds."""
    best: tuple[Load, float] | None = None
    for _ in range(3):
        before = at.cpu_s
        load = play(at.port, sessions, clients)
        cpu_ms = (at.cpu_s - before) / sessions * 1000
        if best is None or load.per_second > best[0].per_second:
            best = load, cpu_ms
    assert best is not None
    return best


def throughput(sessions: int, folder: Path) -> None:
    names = f"{'clients':>8}{'sessions/s':>12}{'x Gym':>7}{'p50 ms':>9}{'p99 ms':>9}"
    print(f"{'':24}{names}{'CPU ms':>9}{'x Gym':>7}")
    cases = [
        ("inspan, journal", "agent_load/agent_process.py", ("0", str(folder / "fast"))),
        ("inspan, no journal", "agent_load/agent_process.py", ("0",)),
        ("FastAPI, in memory", "baseline_fastapi.py", ("--serve",)),
        ("nothing behind our HTTP", "agent_load/bare_process.py", ()),
    ]
    for name, script, arguments in cases:
        with server(script, *arguments) as at:
            play(at.port, max(sessions // 10, 20), 10)
            for clients in (1, 50):
                load, cpu_ms = measure(at, sessions, clients)
                print(
                    f"{name:24}{clients:8}{load.per_second:12.0f}{load.per_second / GYM[clients]:7.2f}"
                    f"{load.quantile_ms(0.5):9.2f}{load.quantile_ms(0.99):9.2f}"
                    f"{cpu_ms:9.2f}{cpu_ms / GYM_CPU_MS[clients]:7.2f}",
                    flush=True,
                )


def cpu(sessions: int, folder: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{HERE}:{os.environ.get('PYTHONPATH', '')}"}
    for name, arguments in (("journal", (str(folder / "cpu"),)), ("no journal", ())):
        for clients in (1, 50):
            # A folder for each: sessions that are kept from before would be counted.
            state = [f"{each}-{clients}" for each in arguments]
            argv = [sys.executable, str(HERE / "agent_load/in_process.py"), str(sessions), str(clients)]
            done = subprocess.run(
                [*argv, *state], env=environment, capture_output=True, text=True, check=True
            )
            print(
                f"CPU of a session without sockets, {name}, {clients} clients: {done.stdout.strip()} ms",
                flush=True,
            )


def memory(sessions: int, folder: Path) -> None:
    for name, arguments in (("journal", (str(folder / "memory"),)), ("no journal", ())):
        with server("agent_load/agent_process.py", "0", *arguments) as at:
            play(at.port, 200, 10)
            empty = at.memory_bytes
            play(at.port, sessions, 20, steps=1)
            live = at.memory_bytes
            print(f"memory of a live session, {name}: {(live - empty) / sessions / 1024:.2f} KiB", flush=True)
        with server("agent_load/agent_process.py", "0", *(f"{each}-closed" for each in arguments)) as at:
            play(at.port, 200, 10)
            empty = at.memory_bytes
            play(at.port, sessions, 20)
            closed = at.memory_bytes
            print(
                f"memory of a closed session, {name}: {(closed - empty) / sessions / 1024:.2f} KiB",
                flush=True,
            )


def recovery(sessions: int, folder: Path) -> None:
    state = str(folder / "recovery")
    with server("agent_load/agent_process.py", "0", state) as at:
        play(at.port, sessions // 2, 20, steps=1)
        play(at.port, sessions - sessions // 2, 20, steps=2)
    began = time.perf_counter()
    with server("agent_load/agent_process.py", "0", state) as at:
        until_ready(at)
        took_s = time.perf_counter() - began
        held = json.load(urllib.request.urlopen(f"http://127.0.0.1:{at.port}/healthz"))["sessions"]
    began = time.perf_counter()
    with server("agent_load/agent_process.py", "0") as at:
        until_ready(at)
        fresh_s = time.perf_counter() - began
    assert held == sessions, (held, sessions)
    print(f"recovery of {sessions} open sessions: {took_s - fresh_s:.2f} s ({took_s:.2f} s with the start)")


def until_ready(at: Server) -> float:
    began = time.perf_counter()
    while time.perf_counter() - began < START_TIMEOUT_S:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{at.port}/readyz") as answer:
                if answer.status == 200:
                    return time.perf_counter() - began
        except OSError:
            time.sleep(0.01)
    raise TimeoutError("the server did not become ready")


def growth(most: int, folder: Path) -> None:
    with server("agent_load/agent_process.py", "0", str(folder / "growth")) as at:
        held, figures = 0, []
        play(at.port, 200, 10)
        for count in (100, 1000, most):
            play(at.port, count - held, 20, steps=1)
            held = count
            costs = []
            for _ in range(3):
                before = at.cpu_s
                play(at.port, 300, 10)
                costs.append((at.cpu_s - before) / 300 * 1000)
            figures.append(min(costs))
            print(f"CPU of a session beside {count:6} open ones: {figures[-1]:.2f} ms", flush=True)
        print(f"growth from 100 to {most}: {figures[-1] / figures[0] - 1:+.0%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the sessions")
    parts = ("throughput", "cpu", "memory", "recovery", "growth")
    parser.add_argument("--only", choices=parts, help="one part")
    options = parser.parse_args()
    share = 10 if options.quick else 1
    with tempfile.TemporaryDirectory(prefix="inspan-bench-") as name:
        folder = Path(name)
        if options.only in (None, "throughput"):
            throughput(3000 // share, folder)
        if options.only in (None, "cpu"):
            cpu(1000 // share, folder)
        if options.only in (None, "memory"):
            memory(10_000 // share, folder)
        if options.only in (None, "recovery"):
            recovery(1000 // share, folder)
        if options.only in (None, "growth"):
            growth(10_000 // share, folder)


if __name__ == "__main__":
    main()
