"""Read a server's journal and tell each session's story, and what a restarted server would owe it.

    pip install 'inspan-core[runtime]'
    python replay_journal.py FOLDER

The server must not be running: it locks its journal's folder.
"""

import sys
from pathlib import Path

from inspan_core.effects import Effect, Reply, StartTimer
from inspan_core.events import Restarted
from inspan_core.machine import new_session, step
from inspan_runtime.journal import StoredSession
from inspan_runtime.journal_sqlite import EVENTS_FILE, JournalError, SqliteJournal


def told(effect: Effect) -> str:
    """Name an effect in a few words."""
    match effect:
        case Reply(waiter=waiter, status=status):
            return f"client {waiter} is answered {status}"
        case StartTimer(kind=kind, delay_s=delay_s):
            return f"{kind.value} timer of {delay_s:g} s"
        case order:
            return f"{type(order).__name__} {order.number}"


def tell(stored: StoredSession) -> None:
    """Print one session: its events with what each led to, and its debts."""
    print(f"session {stored.name}")
    session = new_session(stored.name)
    begun_at = stored.events[0].at if stored.events else 0.0
    for event in stored.events:
        session, effects = step(session, event)
        came = ", ".join(told(effect) for effect in effects) or "nothing"
        print(f"  {event.at - begun_at:9.3f} s  {type(event).__name__:21} {session.phase.value:12} {came}")
    _, owed = step(session, Restarted(at=session.deadline_at or 0.0))
    print(f"  owes: {', '.join(told(effect) for effect in owed) or 'nothing'}\n")


def main(folder: Path) -> None:
    """Tell every session of the journal in the folder."""
    if not (folder / EVENTS_FILE).is_file():
        sys.exit(f"{folder} holds no journal: expected {EVENTS_FILE} in it")
    try:
        journal = SqliteJournal(folder)
    except JournalError as error:
        sys.exit(str(error))
    for stored in journal.load():
        tell(stored)
    journal.close()


if __name__ == "__main__":
    main(Path(sys.argv[1])) if len(sys.argv) == 2 else sys.exit(__doc__)
