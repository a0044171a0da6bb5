"""The arguments of `inspan config ...`; what the verbs do is loaded when one is run."""

from __future__ import annotations

import argparse
from typing import TypeAlias

Actions: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_config(verbs: Actions) -> None:
    """Add the verb ``config`` and its actions."""
    config = verbs.add_parser("config", help="check a server's configuration, or show it whole")
    actions = config.add_subparsers(dest="action", required=True, metavar="ACTION")
    check = actions.add_parser(
        "check",
        help="say what is wrong with a configuration, and what its times add up to",
        description="Read a configuration as `inspan serve` would, against what is installed; start nothing. "
        "Exit codes: 0 it can be served, 2 it cannot (or, with --strict, there are warnings).",
    )
    check.add_argument("file", metavar="FILE", help="the configuration (YAML)")
    check.add_argument("--json", action="store_true", help="print one JSON object")
    check.add_argument("--strict", action="store_true", help="let warnings fail too")
    check.set_defaults(run=_check)
    show = actions.add_parser(
        "show",
        help="print a configuration with every default filled in; secrets as ***",
        description="Print a configuration with every default filled in, as YAML; secrets are shown as ***.",
    )
    show.add_argument("file", metavar="FILE", help="the configuration (YAML)")
    show.add_argument("--json", action="store_true", help="print JSON")
    show.set_defaults(run=_show)


def _check(arguments: argparse.Namespace) -> int:
    from inspan_server.cli.config import check_config

    return check_config(arguments.file, as_json=arguments.json, is_strict=arguments.strict)


def _show(arguments: argparse.Namespace) -> int:
    from inspan_server.cli.config import show_config

    return show_config(arguments.file, as_json=arguments.json)
