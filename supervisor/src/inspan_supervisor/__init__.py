"""The file that supervises a harness inside a sandbox, as bytes to upload, and the names it keeps there."""

from functools import cache
from importlib.resources import files

COMMAND_FILE = "command.json"
STOP_FILE = "stop.request"
CLAIM_FILE = "launch.claim"
PID_FILE = "supervisor.pid"
OUTPUT_FILE = "output.log"
PROCESSES_FILE = "processes.json"
RECEIPT_FILE = "cleanup.json"
SUPERVISOR_FILE = "process_supervisor.py"
RETIRED_SUFFIX = ".retired"

LOADER = 'import sys; sys.argv = sys.argv[1:]; exec(compile(open(sys.argv[0]).read(), sys.argv[0], "exec"))'
"""For ``python -I -S -c LOADER .../process_supervisor.py SESSION_DIR``: the same as running the file itself,
with a megabyte less, since Python keeps the syntax tree of a script that it runs by its path to the end."""

__all__ = [
    "CLAIM_FILE",
    "COMMAND_FILE",
    "LOADER",
    "OUTPUT_FILE",
    "PID_FILE",
    "PROCESSES_FILE",
    "RECEIPT_FILE",
    "RETIRED_SUFFIX",
    "STOP_FILE",
    "SUPERVISOR_FILE",
    "supervisor_source",
]


@cache
def supervisor_source() -> bytes:
    """The source of ``process_supervisor.py``: standard library only, for any Python from 3.8 on."""
    return files(__name__).joinpath(SUPERVISOR_FILE).read_bytes()
