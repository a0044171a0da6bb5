"""Who still came from a process: also one whose first thread has ended, which /proc shows as a zombie."""

import os
import subprocess
import sys
import time
from pathlib import Path

from inspan_runtime.providers.exec_agent.descendants import descendants_of
from inspan_runtime.testing.processes import is_dead, lives

FIRST_THREAD_ENDS = """
import ctypes, threading
threading.Thread(target=threading.Event().wait).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def until(check, what):
    deadline = time.monotonic() + 20
    while not check():
        assert time.monotonic() < deadline, f"not within 20 s: {what}"
        time.sleep(0.003)


def state_of(pid):
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]


def test_a_process_whose_first_thread_has_ended_is_among_them_and_a_zombie_is_not():
    child = subprocess.Popen([sys.executable, "-I", "-S", "-c", FIRST_THREAD_ENDS])
    try:
        until(lambda: state_of(child.pid) == b"Z", "its first thread has ended")
        assert child.pid in descendants_of(os.getpid())
        assert lives(child.pid) and not is_dead(Path(f"/proc/{child.pid}/stat").read_bytes())
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert child.pid not in descendants_of(os.getpid())
        assert not lives(child.pid)
    finally:
        child.kill()
        child.wait(20)
    assert not lives(child.pid)
