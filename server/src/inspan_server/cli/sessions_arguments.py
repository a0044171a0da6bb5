"""The arguments of `inspan sessions`."""

from __future__ import annotations

import argparse
from typing import TypeAlias

Verbs: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_sessions(verbs: Verbs) -> None:
    """Add the verb."""
    sessions = verbs.add_parser("sessions", help="look at a server's sessions, close or abandon one")
    actions = sessions.add_subparsers(dest="action", required=True, metavar="ACTION")
    add = {
        "list": "list the sessions that are kept, also of a server that is down",
        "show": "show one session",
        "close": "close a session as its client would; with --abandon, give it up",
    }
    for name, what in add.items():
        action = actions.add_parser(name, help=what, description=f"{what[0].upper()}{what[1:]}.")
        if name != "list":
            action.add_argument("id", metavar="ID", help="the session's id")
        action.add_argument("--config", required=True, metavar="FILE", help="the server's configuration")
        action.add_argument("--json", action="store_true", help="print JSON")
        if name == "close":
            action.add_argument(
                "--abandon",
                action="store_true",
                help="your decision that its harness will never be proven stopped: it ends, never gradable",
            )
    sessions.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from inspan_server.cli.sessions import run_sessions

    return run_sessions(
        arguments.action,
        arguments.config,
        session_id=getattr(arguments, "id", None),
        abandons=getattr(arguments, "abandon", False),
        as_json=arguments.json,
    )
