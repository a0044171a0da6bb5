"""A harness whose tools fork without end, and somebody else who does the same; runs inside the sandbox only.

    storm.py harness         a child in the group, a tool, a service, and a relay
    storm.py stranger FILE   forks and reaps, for ever; FILE says that the limit of processes was hit

A relay is a process that forks and exits at once: all it ever is has a new pid at the next look. When there
is a receipt, its runner of that moment rests, and tells the pids of its whole line in ``$WORK/runner.line``.
"""

import os
import signal
import sys

BREATH = 6  # How many a stranger forks before it waits for them.


def rest(name):
    with open(f"{os.environ['WORK']}/{name}.tmp", "w") as file:
        file.write(f"{os.getpid()}\n")
    os.rename(file.name, file.name[:-4] + ".pid")
    while True:
        signal.pause()


def fork():
    """Like os.fork, but where there is no room now it tries again."""
    while True:
        try:
            return os.fork()
        except BlockingIOError:
            continue


def relay():
    os.setsid()
    os.open(f"{os.environ['WORK']}/lifeline", os.O_RDWR)
    line = []
    while True:
        line.append(os.getpid())
        if pass_on(line):
            os._exit(0)


def pass_on(line):
    """Like fork(), until the run is over; then there is no next one."""
    while not os.path.exists(f"{os.environ['DIR']}/cleanup.json"):
        try:
            return os.fork()
        except BlockingIOError:
            continue
    with open(f"{os.environ['WORK']}/runner.line", "w") as file:
        file.write(" ".join(map(str, line)))
    rest("runner")


def start_service():
    if fork() == 0:
        os.setsid()
        if fork():
            os._exit(0)
        rest("service")
    os.wait()


def harness():
    os.mkfifo(f"{os.environ['WORK']}/lifeline")
    start_service()
    for name in ("child", "tool"):
        if fork() == 0:
            if name == "tool":
                os.setsid()
            rest(name)
    if fork() == 0:
        relay()
    rest("harness")


def stranger():
    while True:
        for _ in range(BREATH):
            try:
                os.fork() or os._exit(0)
            except BlockingIOError:
                open(sys.argv[2], "w").close()
        while attempt_wait():
            pass


def attempt_wait():
    try:
        return os.wait()
    except ChildProcessError:
        return None


{"harness": harness, "stranger": stranger}[sys.argv[1]]()
