"""The arguments of `inspan harness ...`; what the verbs do is loaded when one is run."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TypeAlias

Run = Callable[[argparse.Namespace], int]
Actions: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

DEADLINE_S = 15.0
SANDBOXES = "bubblewrap (the default), local (isolates nothing) or docker (with --image)"


def add_harness(verbs: Actions) -> None:
    """Add the verb ``harness`` and its actions."""
    harness = verbs.add_parser(
        "harness",
        help="list, show, install, examine and begin harness plugins",
        description="What harnesses are installed, whether they work here, and how to begin one of your own.",
    )
    actions = harness.add_subparsers(dest="action", required=True, metavar="ACTION")
    _add_list(actions)
    _add_show(actions)
    _add_install(actions)
    _add_doctor(actions)
    _add_check(actions)
    _add_prune(actions)
    _add_new(actions)


def _action(actions: Actions, verb: str, run: Run, *, help: str, description: str) -> argparse.ArgumentParser:
    """An action that can print JSON."""
    parser = actions.add_parser(verb, help=help, description=description)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)
    return parser


def _add_cache(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cache-dir",
        metavar="DIR",
        help="the host's cache of runtimes (runtime_cache_dir of a server); default: the user's cache folder",
    )


def _add_tried(parser: argparse.ArgumentParser) -> None:
    """The arguments of what is done with an installed harness in a sandbox of its own."""
    parser.add_argument("name", metavar="NAME", help="an installed harness")
    parser.add_argument(
        "--sandbox", default="bubblewrap", metavar="NAME", help=f"where it is tried: {SANDBOXES}"
    )
    parser.add_argument("--image", metavar="IMAGE", help="the image of that sandbox, for docker")
    _add_cache(parser)


def _place(arguments: argparse.Namespace) -> dict[str, str | None]:
    return {name: getattr(arguments, name) for name in ("sandbox", "image", "cache_dir")}


def _add_list(actions: Actions) -> None:
    _action(
        actions,
        "list",
        _list,
        help="list installed harnesses, and plugins that are broken",
        description="List the installed harnesses, and every plugin that cannot be used, with the reason.",
    )


def _list(arguments: argparse.Namespace) -> int:
    from inspan_server.cli.harness import list_harnesses

    return list_harnesses(as_json=arguments.json)


def _add_show(actions: Actions) -> None:
    show = _action(
        actions,
        "show",
        _show,
        help="show what a harness supports: level, model API, tools, request fields, options",
        description="Show a harness's declaration: level, model API, tool sources, what becomes of each "
        "field of a request, options with their defaults, versions and the distribution that brought it.",
    )
    show.add_argument("name", metavar="NAME", help="an installed harness")


def _show(arguments: argparse.Namespace) -> int:
    from inspan_server.cli.harness import show_harness

    return show_harness(arguments.name, as_json=arguments.json)


def _add_install(actions: Actions) -> None:
    install = _action(
        actions,
        "install",
        _install,
        help="fill this host's cache with a harness's runtime, and see it run",
        description="Download, verify and unpack a harness's pinned runtime into this host's cache, and run "
        "its check in a sandbox that is thrown away. Later seeds for such sandboxes need no network.",
    )
    _add_tried(install)


def _install(arguments: argparse.Namespace) -> int:
    from inspan_server.cli.harness_install import install_harness

    return install_harness(arguments.name, _place(arguments), as_json=arguments.json)


def _add_doctor(actions: Actions) -> None:
    doctor = _action(
        actions,
        "doctor",
        _doctor,
        help="say whether a harness works on this machine, and how to mend what does not",
        description="Examine plugin, sandbox provider, cache and runtime on this machine, without "
        "downloading anything, and say how to mend what is wrong.",
    )
    _add_tried(doctor)


def _doctor(arguments: argparse.Namespace) -> int:
    from inspan_server.cli.harness_doctor import examine_harness

    return examine_harness(arguments.name, _place(arguments), as_json=arguments.json)


def _add_check(actions: Actions) -> None:
    check = _action(
        actions,
        "check",
        _check,
        help="tell whether a plugin keeps the rules that every plugin has to keep",
        description="Run the checks of plugins, with real processes and a scripted model, in new sandboxes "
        "of the kind that is asked for.",
    )
    _add_tried(check)
    check.add_argument(
        "--shell",
        metavar="TOOL:ARGUMENT",
        help="how a model calls the harness's shell, for example bash:command; without it, checks of tools "
        "are left out",
    )
    check.add_argument("--options", metavar="JSON", help="harness_options, over the defaults")
    check.add_argument(
        "--deadline",
        type=float,
        default=DEADLINE_S,
        metavar="SECONDS",
        help="of runs that are to reach it: longer than the harness takes to call; default: %(default)g",
    )
    check.add_argument("--only", action="append", metavar="WORD", help="only checks with this word")


def _check(arguments: argparse.Namespace) -> int:
    from inspan_server.cli.harness_check import check_harness

    return check_harness(
        arguments.name,
        _place(arguments),
        shell=arguments.shell,
        options=arguments.options,
        deadline_s=arguments.deadline,
        only=tuple(arguments.only or ()),
        as_json=arguments.json,
    )


def _add_prune(actions: Actions) -> None:
    prune = _action(
        actions,
        "prune",
        _prune,
        help="remove old runtimes from this host's cache",
        description="Remove runtimes of old versions from this host's cache, except those used last, those "
        "used within the last hour and those that a sandbox may still use. The same happens by itself, with "
        "three versions kept, whenever a new runtime is built.",
    )
    prune.add_argument(
        "--keep", type=int, default=1, metavar="N", help="how many versions of each stay; default: 1"
    )
    _add_cache(prune)


def _prune(arguments: argparse.Namespace) -> int:
    from inspan_server.cli.harness_install import prune_cache

    return prune_cache(arguments.cache_dir, keep=arguments.keep, as_json=arguments.json)


def _add_new(actions: Actions) -> None:
    new = _action(
        actions,
        "new",
        _new,
        help="begin a plugin of your own: a package that passes its tests at once",
        description="Make a package for a harness plugin from the template inspan-echo: entry point, hooks, "
        "in-sandbox runner, parser, README and tests, all under the new name. Nothing is overwritten.",
    )
    new.add_argument("name", metavar="NAME", help="lower case letters, digits and '-', for example my-agent")
    new.add_argument("--dir", metavar="DIR", help="the new folder; default: inspan-NAME here")


def _new(arguments: argparse.Namespace) -> int:
    from inspan_server.cli.harness_new import new_harness

    return new_harness(arguments.name, arguments.dir, as_json=arguments.json)
