"""The arguments of `inspan sandbox`."""

from __future__ import annotations

import argparse
from typing import TypeAlias

from inspan_core.errors import UsageError

Verbs: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
REAP_AFTER_S = 60.0


def add_sandbox(verbs: Verbs) -> None:
    """Add the verb with its actions."""
    sandbox = verbs.add_parser(
        "sandbox", help="sandboxes: list, check a provider, look around in one, clean up"
    )
    actions = sandbox.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser(
        "list",
        help="list providers, and the sandboxes that there are",
        description="List providers with what they can do, and all sandboxes with who holds them.",
    )
    listing.set_defaults(run=_list)
    check = actions.add_parser(
        "check",
        help="tell whether a provider keeps the contract, and how fast it is",
        description="Run the conformance list against a provider: a kind, or a block of a configuration.",
    )
    check.add_argument("name", metavar="NAME", help="a provider's kind, or a block of the configuration")
    check.add_argument("--only", action="append", metavar="WORD", help="only checks with this word")
    check.add_argument("--no-latency", action="store_true", help="measure nothing")
    check.set_defaults(run=_check)
    shell = actions.add_parser(
        "shell",
        help="open a sandbox and look around in it",
        description="Make a sandbox, or connect to one by its id, and run what is typed, line by line.",
    )
    shell.add_argument(
        "name", nargs="?", default="bubblewrap", metavar="NAME", help="a kind, a block, or a sandbox's id"
    )
    shell.add_argument("--keep", action="store_true", help="leave the sandbox there at the end")
    shell.set_defaults(run=_shell)
    reap = _add_reap(actions)
    for action in (listing, check, reap):
        action.add_argument("--json", action="store_true", help="print one JSON object")
    for action in (listing, check, shell, reap):
        action.add_argument(
            "--config", metavar="FILE", help="an Agent Server's configuration, for its provider blocks"
        )
    for action in (check, shell):
        action.add_argument("--image", metavar="IMAGE", help="for providers that have images")


def _add_reap(actions: Verbs) -> argparse.ArgumentParser:
    reap = actions.add_parser(
        "reap",
        help="remove what is left of dead runs",
        description="Remove sandboxes that no living process has created or connected to, and what is left "
        "of those whose keeper was killed. Never one whose server lives.",
    )
    reap.add_argument("--dry-run", action="store_true", help="only list what would be removed")
    reap.add_argument(
        "--label",
        action="append",
        type=_label,
        default=[],
        metavar="NAME=VALUE",
        help="only with this label; repeatable",
    )
    reap.add_argument(
        "--older-than",
        type=float,
        default=REAP_AFTER_S,
        metavar="SECONDS",
        help="a server that is being started again may still want younger ones; default: %(default)g",
    )
    reap.set_defaults(run=_reap)
    return reap


def _label(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not name or not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def _list(arguments: argparse.Namespace) -> int:
    from inspan_server.cli.sandbox import list_sandboxes

    return list_sandboxes(arguments.config, as_json=arguments.json)


def _check(arguments: argparse.Namespace) -> int:
    from inspan_server.cli.sandbox_check import check_provider

    return check_provider(
        arguments.name,
        config=arguments.config,
        image=arguments.image,
        only=tuple(arguments.only or ()),
        measures=not arguments.no_latency,
        as_json=arguments.json,
    )


def _shell(arguments: argparse.Namespace) -> int:
    from inspan_server.cli.sandbox_shell import open_shell

    return open_shell(arguments.name, config=arguments.config, image=arguments.image, keep=arguments.keep)


def _reap(arguments: argparse.Namespace) -> int:
    from inspan_server.cli.sandbox import reap

    if not arguments.older_than >= 0:
        raise UsageError(f"--older-than: {arguments.older_than} is not a number of seconds from 0 on")
    return reap(
        arguments.config,
        labels=dict(arguments.label),
        older_than_s=arguments.older_than,
        dry_run=arguments.dry_run,
        as_json=arguments.json,
    )
