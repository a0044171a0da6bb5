"""Looks at processes and acts on them from inside the sandbox: one order in argv, one answer on stdout.

    observer.py '{"do": ..., ...}'

A process is named by [pid, start time]; a zombie is dead. Every wait has a deadline.
"""

import errno
import json
import os
import signal
import sys
import time

MARKER = "INSPAN_MATRIX"
GONE = (errno.ENOENT, errno.ESRCH, errno.EACCES, errno.EPERM)
GROUP, ADOPTED, UNDERWAY = "in the group", "adopted before the end", "underway"


class NotYet(Exception):
    """What is still missing."""


def stat_of(pid):
    """State, parent, group and start time, or None when there is no such process.

    The state is that of the first thread; a process with others is no zombie, whatever became of the first.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state = "a thread lives" if fields[0] == b"Z" and int(fields[17]) > 1 else fields[0].decode()
    return state, int(fields[1]), int(fields[2]), int(fields[19])


def is_dead(stat):
    return stat is None or stat[0] in ("Z", "X")


def lives(identity):
    stat = stat_of(identity[0])
    return not is_dead(stat) and stat[3] == identity[1]


def environments_of(pid):
    """Of all its threads: a first thread that has ended has none."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{thread}/environ", "rb") as file:
                yield file.read().split(b"\0")
        except OSError as error:
            if error.errno not in GONE:
                raise


def living(marker=None):
    """The identities of all living processes but this one; with a marker, of those that carry it."""
    needle = f"{MARKER}={marker}".encode()
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        stat = stat_of(name)
        if is_dead(stat) or int(name) == os.getpid():
            continue
        try:
            if marker is None or any(needle in one for one in environments_of(name)):
                found.append([int(name), stat[3]])
        except FileNotFoundError:
            continue
    return sorted(found)


def settled(marker=None, timeout_s=10.0):
    """Two looks after each other that say the same; fails for what never holds still."""
    deadline = time.monotonic() + timeout_s
    before = living(marker)
    while True:
        now = living(marker)
        if now == before:
            return now
        if time.monotonic() > deadline:
            sys.exit(f"the processes never hold still: {before} {now}")
        before = now


def poll(check, order):
    """The first value of `check()`, or {"early": true} when the receipt comes before it."""
    deadline = time.monotonic() + order["timeout_s"]
    while True:
        try:
            return check()
        except NotYet as missing:
            if os.path.exists(order["session_dir"] + "/cleanup.json"):
                return {"early": True, "missing": str(missing)}
            if time.monotonic() > deadline:
                sys.exit(f"not within {order['timeout_s']} s: {missing}")
        time.sleep(0.002)


def read_pid(path):
    try:
        with open(path) as file:
            return int(file.read())
    except (FileNotFoundError, ValueError):
        raise NotYet(path) from None


def ready(order):
    """Wait until every process is where the rules say; returns the identities by name."""
    work = order["work"]

    def check():
        pids = {"supervisor": read_pid(order["session_dir"] + "/supervisor.pid")}
        pids["harness"] = read_pid(f"{work}/harness.pid")
        stats = {}
        for one in order["processes"]:
            pids[one["name"]] = read_pid(f"{work}/{one['name']}.pid")
        for name, pid in pids.items():
            stats[name] = stat_of(pid)
            if stats[name] is None:
                raise NotYet(f"{name} (pid {pid}) to live")
        for one in order["processes"]:
            require_place(one, pids, stats)
            if one.get("writes") and not os.path.exists(f"{work}/{one['name']}.log"):
                raise NotYet(f"{one['name']} to write")
        if order["is_stopped"] and stats["harness"][0] != "T":
            raise NotYet("the harness to be stopped")
        return {"known": {name: [pid, stats[name][3]] for name, pid in pids.items()}}

    return poll(check, order)


def require_place(one, pids, stats):
    _, parent, group, _ = stats[one["name"]]
    if one["place"] == GROUP:
        fits = group == pids["harness"]
    elif one["place"] == ADOPTED:
        fits = group != pids["harness"] and parent == pids["supervisor"]
    else:
        fits = group != pids["harness"] and parent == pids[one["above"] or "harness"]
    if not fits:
        raise NotYet(f"{one['name']} to be {one['place']}")


def bring_end(order):
    """Make the harness end, plant a stop request, or both, `offset_ms` apart."""
    steps = []
    if order["exit"]:
        steps.append(lambda: make_exit(order))
    if order["stop"]:
        at = 0 if order["offset_ms"] < 0 else len(steps)
        steps.insert(at, lambda: open(order["session_dir"] + "/stop.request", "x").close())
    for index, step in enumerate(steps):
        until = time.monotonic() + abs(order["offset_ms"]) / 1000 if index else 0.0
        while time.monotonic() < until:  # A race of milliseconds is aimed by spinning.
            pass
        step()
    return {}


def make_exit(order):
    try:
        if order["kill"]:
            os.kill(order["kill"], signal.SIGKILL)
        else:
            os.write(os.open(order["work"] + "/go", os.O_WRONLY | os.O_NONBLOCK), b".")
    except OSError as error:  # The stop was faster.
        if error.errno not in (errno.ESRCH, errno.ENXIO):
            raise


def kill_at_term(order):
    """Be the stranger who kills the harness while it handles its SIGTERM."""

    def check():
        read_pid(order["work"] + "/termed.pid")
        os.kill(order["kill"], signal.SIGKILL)
        return {}

    return poll(check, order)


def census(order):
    """Who lives right now; then, for writers, the proof that nobody writes any more."""
    answer = {"lives": [name for name, identity in order["known"].items() if lives(identity)]}
    answer["strangers_hit"] = [identity for identity in order["strangers"] if not lives(identity)]
    answer["marked"] = settled(order["marker"])
    if order["writes"]:
        sizes = sizes_of(order)
        answer["holders"] = lifeline_is_held(order["work"] + "/lifeline")
        answer["marked_again"] = settled(order["marker"])
        answer["grew"] = {name: size for name, size in sizes_of(order).items() if size != sizes.get(name)}
        answer["sizes"] = sizes
    return answer


def sizes_of(order):
    entries = [entry for entry in os.scandir(order["work"]) if entry.name.endswith(".log")]
    return {entry.name[:-4]: entry.stat().st_size for entry in entries}


def lifeline_is_held(path):
    """Whether any process has the FIFO open for writing."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        return os.read(fd, 1) != b""
    except BlockingIOError:
        return True
    finally:
        os.close(fd)


def sweep(order):
    """Kill what a cell left, until two looks find none; returns who lives in the sandbox then.

    With `until`, they get time to be these: a process that was just killed has lost its environment, and with
    it its mark, before it is dead.
    """
    deadline = time.monotonic() + 10
    clean_looks = 0
    while clean_looks < 2:
        found = living(order["marker"])
        for pid, _ in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        clean_looks = 0 if found else clean_looks + 1
        if time.monotonic() > deadline:
            sys.exit(f"these do not die: {found}")
    everybody = living()
    while order.get("until") not in (None, everybody) and time.monotonic() < deadline:
        everybody = living()
    return {"living": everybody}


def stranger(order):
    """Start processes that no ending may hit; returns their identities."""
    started = []
    for _ in range(order["count"]):
        pid = os.fork()
        if pid == 0:
            os.setsid()
            null = os.open(os.devnull, os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(null, fd)
            os.execvp(order["argv"][0], order["argv"])
        started.append([pid, stat_of(pid)[3]])
    return {"started": started}


def zombies(order):
    """The zombies of a parent, once there are none or the time is over."""
    deadline = time.monotonic() + order["timeout_s"]
    while True:
        stats = [(int(name), stat_of(name)) for name in os.listdir("/proc") if name.isdigit()]
        found = [pid for pid, stat in stats if stat and stat[:2] == ("Z", order["parent"])]
        if not found or time.monotonic() > deadline:
            return {"zombies": found}
        time.sleep(0.002)


def appears(order):
    """Wait until all paths exist."""

    def check():
        for path in order["paths"]:
            if not os.path.exists(path):
                raise NotYet(path)
        return {}

    return poll(check, order)


def runner(order):
    """Where a relay came to rest after the receipt, and the pids of all that it was."""
    deadline = time.monotonic() + order["timeout_s"]
    while True:
        try:
            pid = read_pid(order["work"] + "/runner.pid")
            with open(order["work"] + "/runner.line") as file:
                return {"identity": [pid, stat_of(pid)[3]], "line": [int(one) for one in file.read().split()]}
        except NotYet as missing:
            if time.monotonic() > deadline:
                sys.exit(f"the relay does not rest: {missing}")
        time.sleep(0.002)


ORDERS = {
    "stranger": stranger, "ready": ready, "bring_end": bring_end, "kill_at_term": kill_at_term,
    "census": census, "sweep": sweep, "zombies": zombies, "appears": appears, "runner": runner,
}  # fmt: skip

if __name__ == "__main__":
    received = json.loads(sys.argv[1])
    print(json.dumps(ORDERS[received["do"]](received)))  # noqa: T201
