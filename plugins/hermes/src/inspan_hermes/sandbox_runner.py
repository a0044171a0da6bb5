"""Runs inside the sandbox under the supervisor: drives Hermes' agent in this very process.

Standard library, and Hermes from the installed runtime; Python >= 3.11, which Hermes needs. The interpreter
is the sandbox's, started with `-I -S`, so that nothing of the task's is imported. `input.json` (see
`inspan_hermes.settings`) is read and deleted first thing: the model's key and the grants' headers are in this
process's memory only.

Written into the session folder as the run goes::

    runtime_info.json   who runs
    ready.json          after all settings were found to be in force, before the first model call
    events.jsonl        `inspan_hermes.model_calls` and `inspan_hermes.agent_run` say what
    output.json         how it ended; absent after SIGKILL
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
import traceback

FOLDER = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(FOLDER, "lib"))
sys.dont_write_bytecode = True
from inspan_core import shim
from inspan_hermes.agent_run import AgentRun, NotReady
from inspan_hermes.model_calls import Trace

NAME = b"inspan-h"
# How long the end waits for tool servers to be let go.
LEAVE_S = 3.0


def main() -> int:
    """Run the order of ``input.json``.

    Returns:
        0 when Hermes came to an end of its own, 143 when it was stopped, 70 when it did not start.
    """
    shim.rename_process(NAME)
    order = shim.take_order(FOLDER)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: stop.set())
    info = {"hostname": socket.gethostname(), "pid": os.getpid(), "interpreter": sys.executable}
    shim.write_atomically(os.path.join(FOLDER, "runtime_info.json"), info)
    trace = Trace(FOLDER)
    run = AgentRun(order, FOLDER, trace)
    output = {"started_at": time.time(), "result": None, "error": None}  # type: dict[str, object]
    worker = threading.Thread(target=work, args=(run, output), daemon=True)
    worker.start()
    follow(worker, stop, run)
    output["ended_at"] = time.time()
    output["stopped"] = stop.is_set()
    output["events"] = {"written": trace.events.written, "dropped": trace.events.dropped}
    shim.write_atomically(os.path.join(FOLDER, "output.json"), output)
    leaving = threading.Thread(target=run.leave, daemon=True)
    leaving.start()
    leaving.join(LEAVE_S)
    if stop.is_set():
        return 143
    return 70 if output["result"] is None else 0


def work(run: AgentRun, output: dict[str, object]) -> None:
    """Everything that Hermes does; whatever goes wrong becomes part of the output."""
    try:
        run.prepare()
        output["result"] = run.converse()
    except NotReady as error:
        output["error"] = {"type": error.kind, "message": str(error)}
    except BaseException as error:
        traceback.print_exc()
        output["error"] = {"type": type(error).__name__, "message": str(error)[:65536]}


def follow(worker: threading.Thread, stop: threading.Event, run: AgentRun) -> None:
    """Wait for the end; a stop interrupts Hermes, which then ends by itself."""
    is_told = False
    while worker.is_alive():
        worker.join(0.05)
        if stop.is_set() and not is_told:
            is_told = run.interrupt()


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads that Hermes left must not hold the process, nor its exit handlers end the task's services.
    os._exit(code)
