"""An Agent Server that kills itself with SIGKILL right after (or before) the Nth record of its journal.

Usage: dying_server.py CONFIG.yaml PORT N before|after    (N = 0: never)
"""

import os
import signal
import sys
from pathlib import Path

from inspan_runtime import journal_sqlite
from inspan_server.cli.serve import serve

limit, moment = int(sys.argv[3]), sys.argv[4]
written = 0


def die_at_the_limit(append):
    def counted(self, name, event):
        global written
        written += 1
        if written == limit and moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        append(self, name, event)
        log = Path(sys.argv[1]).with_suffix(".records")
        with log.open("a") as file:
            file.write(type(event).__name__ + "\n")
        if written == limit:
            os.kill(os.getpid(), signal.SIGKILL)

    return counted


journal_sqlite.SqliteJournal.append = die_at_the_limit(journal_sqlite.SqliteJournal.append)
sys.exit(serve(sys.argv[1], port=int(sys.argv[2])))
