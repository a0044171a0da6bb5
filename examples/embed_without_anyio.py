"""Drive the pure machine from a plain loop: `pip install inspan-core`, no event loop, no threads.

Each order is one plain function that says what became of it. The sandbox is a folder here, and the harness a
shell script in a process group of its own.
"""

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from time import monotonic as now

from inspan_core import answers as a
from inspan_core import effects as e
from inspan_core import findings as f
from inspan_core.events import ActivateRequested, CloseRequested, SeedRequested
from inspan_core.host import Host

FOLDER = Path(tempfile.gettempdir()) / f"embedded-{os.getpid()}"
OUTCOMES = {"42\n": f.Outcome.COMPLETED, "": f.Outcome.FAILED}


def launch(order: e.Launch) -> tuple:
    """Run the harness, and prove that its process group is over."""
    harness = subprocess.Popen(["sh", "-c", "echo 42 >result"], cwd=FOLDER, start_new_session=True)
    code = harness.wait(timeout=order.run_timeout_s)
    try:
        os.killpg(harness.pid, signal.SIGKILL)
    except ProcessLookupError:
        return a.TerminationConfirmed, {"return_code": code, "timed_out": False, "error": None}
    return a.TerminationRefuted, {"error": "the harness left something running"}


DO = {
    e.CreateSandbox: lambda order: FOLDER.mkdir() or (a.SandboxReady, {}),
    e.Install: lambda order: (a.Installed, {}),
    e.TakeSlot: lambda order: (a.SlotGranted, {}),
    e.Stage: lambda order: (a.Staged, {}),
    e.Launch: launch,
    e.Collect: lambda order: (a.Collected, {"result": f.CollectResult.OK, "detail": None}),
    e.Parse: lambda order: (a.Parsed, {"outcome": OUTCOMES[(FOLDER / "result").read_text()], "detail": None}),
    e.ReleaseExec: lambda order: (a.ExecReleased, {}),
    e.StopSandbox: lambda order: shutil.rmtree(FOLDER) or (a.SandboxStopped, {}),
}
host, run = Host(), {"body_digest": "run", "path": f.Path.MATCHES, "run_timeout_s": 60.0}
for request, said in (
    (SeedRequested, {"waiter": 1, "body_digest": "seed", "owned": True, "cookie": f.Cookie.ABSENT}),
    (ActivateRequested, {"waiter": 2, "cookie": f.Cookie.SAME, **run}),
    (CloseRequested, {"waiter": 3, "cookie": f.Cookie.SAME, "same_episode": True}),
):
    todo = list(host.deliver("s1", request(at=now(), **said)))
    for effect in todo:  # grows while orders are answered
        print(effect)
        if type(effect) in DO:
            answer, fields = DO[type(effect)](effect)
            todo += host.deliver("s1", answer(at=now(), order=effect.number, **fields))
print("gradable:", host.session("s1").gradable)
