"""A harness that starts one kind of child and ends in one way; it runs inside the sandbox, supervised.

    fake_harness.py KIND BEHAVIOUR CODE waits|writes

Every process tells its pid in ``$WORK/<name>.pid``, the harness last. It ends with CODE when somebody writes
to the FIFO ``$WORK/go``. With "writes", all but the services append to ``$WORK/<name>.log`` without end and
hold ``$WORK/lifeline`` open.
"""

import ctypes
import os
import select
import signal
import sys
import threading

WORK = os.environ["WORK"]
LATE = ("late_1", "late_2", "late_3")
REPORT = 'echo $$ > "$WORK/$0.tmp" && mv "$WORK/$0.tmp" "$WORK/$0.pid"; '
WAITS = REPORT + "exec sleep 1000"
WRITES = REPORT + 'exec 9<> "$WORK/lifeline"; while :; do echo x >> "$WORK/$0.log"; done'
IN_BACKGROUND = 'sh -c "$1" "$0" &'
NOHUP = 'nohup sh -c "$1" "$0" > /dev/null 2>&1 &'
TMUX = ("tmux", "-u", "-S", WORK + "/tmux", "-f", "/dev/null")
TELL_SERVER = 'exec 3> "$WORK/server.tmp"; "$@" >&3 && mv "$WORK/server.tmp" "$WORK/server.pid"'


def start(argv, new_session=False, orphaned=False):
    """Fork and execute; when orphaned, by way of a process that exits at once."""
    pid = os.fork()
    if pid == 0:
        try:
            if new_session:
                os.setsid()
            if orphaned and os.fork():
                os._exit(0)
            os.execvp(argv[0], argv)
        finally:
            os._exit(127)
    if orphaned:
        os.waitpid(pid, 0)
    return pid


def finish(argv, new_session=False):
    status = os.waitpid(start(argv, new_session), 0)[1]
    if status != 0:
        sys.exit(f"{argv[0]} failed with wait status {status}")


def report(name):
    with open(f"{WORK}/{name}.tmp", "w") as file:
        file.write(f"{os.getpid()}\n")
    os.rename(f"{WORK}/{name}.tmp", f"{WORK}/{name}.pid")


def start_tmux(payload):
    os.environ["PAYLOAD"] = payload
    finish([*TMUX, "new-session", "-d", 'exec sh -c "$PAYLOAD" pane'], new_session=True)
    finish(["sh", "-c", TELL_SERVER, "sh", *TMUX, "display-message", "-p", "#{pid}"])


def start_family(payload):
    """A tool with a child that orphans a process now, and more as soon as the tool is dead."""
    if os.fork():
        return
    os.setsid()
    tool_lives, held_by_tool = os.pipe()
    if os.fork():
        os.set_inheritable(held_by_tool, True)
        os.execvp("sh", ["sh", "-c", payload, "tool"])
    os.close(held_by_tool)
    start(["sh", "-c", WAITS, "orphan"], new_session=True, orphaned=True)
    log = os.open(WORK + "/grandchild.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    if payload == WRITES:
        os.open(WORK + "/lifeline", os.O_RDWR)
    report("grandchild")
    while not select.select([tool_lives], [], [], 0.001 if payload == WRITES else None)[0]:
        os.write(log, b"x\n")
    for name in LATE:
        start(["sh", "-c", payload, name], new_session=True, orphaned=True)
    signal.pause()


def start_headless(payload):
    """A process that looks like a zombie, because its first thread has ended; another one goes on."""
    if os.fork():
        return
    os.setsid()
    threading.Thread(target=go_on, args=(payload == WRITES,)).start()
    ctypes.CDLL(None).pthread_exit(None)


def go_on(writes):
    log = os.open(WORK + "/child.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    if writes:
        os.open(WORK + "/lifeline", os.O_RDWR)
    while not looks_dead():
        pass
    report("child")
    while True:
        select.select([], [], [], 0.001 if writes else None)
        os.write(log, b"x\n")


def looks_dead():
    with open("/proc/self/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "Z"


def start_kind(kind, payload):
    child = ["sh", "-c", payload, "child"]
    in_session = "own session" in kind
    if kind == "own session, its first thread has ended":
        start_headless(payload)
    elif kind == "child in the group" or kind == "own session":
        start(child, new_session=in_session)
    elif kind == "double fork":
        start(child, new_session=True, orphaned=True)
    elif kind.startswith("nohup &"):
        finish(["sh", "-c", NOHUP, "child", payload], in_session)
    elif kind.startswith("plain &"):
        finish(["sh", "-c", IN_BACKGROUND, "child", payload], in_session)
    elif kind == "tmux":
        start_tmux(payload)
    elif kind == "grandchildren that orphan more":
        start_family(payload)
    else:
        sys.exit(f"{kind!r} is no kind of child")


def on_term(behaviour, payload):
    """What the harness does on SIGTERM."""

    def exit_at_once(number, frame):
        os._exit(5)

    def wait_for_the_killer(number, frame):
        report("termed")

    def fork(number, frame):
        start(["sh", "-c", payload, LATE[0]])
        start(["sh", "-c", payload, LATE[1]], new_session=True)
        start(["sh", "-c", payload, LATE[2]], new_session=True, orphaned=True)
        os._exit(5)

    return {
        "exits": signal.SIG_DFL,
        "stops itself": signal.SIG_DFL,
        "exits on TERM": exit_at_once,
        "ignores TERM": signal.SIG_IGN,
        "is killed by somebody else": wait_for_the_killer,
        "forks on TERM": fork,
    }[behaviour]


def main():
    kind, behaviour, code, does = sys.argv[1:]
    payload = {"waits": WAITS, "writes": WRITES}[does]
    for name in ("go", "lifeline"):
        os.mkfifo(f"{WORK}/{name}")
    start_kind(kind, payload)
    signal.signal(signal.SIGTERM, on_term(behaviour, payload))
    go = os.open(WORK + "/go", os.O_RDWR)
    report("harness")
    if behaviour == "stops itself":
        os.kill(os.getpid(), signal.SIGSTOP)
    os.read(go, 1)
    os._exit(int(code))


main()
