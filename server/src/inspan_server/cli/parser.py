"""The `inspan` command: its verbs and exit codes.

Exit codes: 0 done; 1 the run failed; 2 wrong usage; 3 something that inspan needs is missing; 130 and 143
when it was interrupted by Ctrl-C or SIGTERM.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import TYPE_CHECKING, TypeAlias

from inspan_core.errors import ProviderUnavailable, UsageError
from inspan_server.cli.config_arguments import add_config
from inspan_server.cli.exit_codes import FAILED, INFRASTRUCTURE, USAGE
from inspan_server.cli.failure import failed
from inspan_server.cli.harness_arguments import add_harness
from inspan_server.cli.sandbox_arguments import add_sandbox
from inspan_server.cli.sessions_arguments import add_sessions

if TYPE_CHECKING:
    from inspan_server.model.upstream import Upstream


def run_command(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns:
        The process's exit code.
    """
    arguments = build_parser().parse_args(argv)
    try:
        try:
            return int(arguments.run(arguments))
        except (UsageError, ProviderUnavailable) as error:
            code = USAGE if isinstance(error, UsageError) else INFRASTRUCTURE
            as_json = bool(getattr(arguments, "json", False))
            return failed(f"inspan {arguments.verb}", error, code, as_json=as_json)
    except BrokenPipeError:
        # Whoever read our output has gone; Python must not complain about it once more at exit.
        sys.stdout = None
        return FAILED


def build_parser() -> argparse.ArgumentParser:
    """The parser with all verbs; each sets ``run`` to a function of the parsed arguments."""
    parser = argparse.ArgumentParser(
        prog="inspan",
        description="Run agent harnesses in task sandboxes: nothing is graded that was not proven stopped.",
        epilog="Exit codes: 0 done, 1 the run failed, 2 wrong usage, 3 something is missing on this machine.",
    )
    parser.add_argument("--version", action="version", version=f"inspan {metadata.version('inspan-server')}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    _add_demo(verbs)
    _add_serve(verbs)
    add_sessions(verbs)
    add_config(verbs)
    add_harness(verbs)
    add_sandbox(verbs)
    _add_machine(verbs)
    return parser


Verbs: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def _add_demo(verbs: Verbs) -> None:
    demo = verbs.add_parser(
        "demo",
        help="run one whole episode and show it",
        description="Run one whole episode on this machine: a sandbox with a small repository whose test "
        "fails, a real harness in it that talks to a scripted model, its proven end, the verification.",
    )
    demo.add_argument(
        "--harness",
        default="pi",
        metavar="NAME",
        help="an installed harness (inspan harness list); default: pi",
    )
    demo.add_argument(
        "--sandbox",
        default="bubblewrap",
        metavar="NAME",
        help="bubblewrap (the default) or local (isolates nothing)",
    )
    demo.add_argument("--json", action="store_true", help="print one JSON object at the end and nothing else")
    demo.add_argument(
        "--keep", action="store_true", help="also keep the repository as the agent left it (repository.tar)"
    )
    demo.add_argument(
        "--run-dir", metavar="DIR", help="where the run's records go; default: a new folder below ./runs"
    )
    demo.add_argument("--task", metavar="DIR", help="a task of your own: task.yaml, files/, verify/")
    demo.add_argument("--script", metavar="FILE", help="what the model answers, call by call (YAML or JSON)")
    demo.add_argument(
        "--model-url",
        metavar="URL",
        help="a real model in place of a script: the base URL of an OpenAI-compatible server, with /v1",
    )
    demo.add_argument("--model", default="policy", metavar="NAME", help="the real model's name")
    demo.add_argument(
        "--model-api",
        choices=("both", "chat_completions"),
        default="both",
        help="what that server has; with chat_completions, Responses calls are converted",
    )
    demo.add_argument(
        "--model-key-env", metavar="NAME", help="the environment variable that holds that server's key"
    )
    demo.set_defaults(run=_demo)


def _demo(arguments: argparse.Namespace) -> int:
    from inspan_server.cli.demo import DemoOptions, run_demo

    return run_demo(
        DemoOptions(
            harness=arguments.harness,
            sandbox=arguments.sandbox,
            as_json=arguments.json,
            keep=arguments.keep,
            run_dir=arguments.run_dir,
            task=arguments.task,
            script=arguments.script,
            upstream=_upstream(arguments),
            model=arguments.model,
        )
    )


def _upstream(arguments: argparse.Namespace) -> Upstream | None:
    from inspan_server.model.upstream import Upstream

    if arguments.model_url is None:
        return None
    name = arguments.model_key_env
    if name is not None and not os.environ.get(name):
        raise UsageError(f"--model-key-env: the environment variable {name!r} is not set")
    key = None if name is None else os.environ[name]
    return Upstream(base_url=arguments.model_url, key=key, api=arguments.model_api)


def _add_serve(verbs: Verbs) -> None:
    serve = verbs.add_parser(
        "serve",
        help="run an Agent Server",
        description="Run an Agent Server for one harness until it is interrupted.",
    )
    serve.add_argument("--config", required=True, metavar="FILE", help="the server's configuration (YAML)")
    serve.add_argument(
        "--host", metavar="HOST", help="interface to listen on, in place of the configuration's"
    )
    serve.add_argument(
        "--port", type=int, metavar="PORT", help="port, in place of the configuration's; 0: any"
    )
    serve.add_argument(
        "--log-format", choices=("text", "json"), default="text", help="of the log on stderr; default: text"
    )
    serve.set_defaults(run=_serve)


def _serve(arguments: argparse.Namespace) -> int:
    from inspan_server.cli.serve import serve

    return serve(arguments.config, host=arguments.host, port=arguments.port, log_format=arguments.log_format)


def _add_machine(verbs: Verbs) -> None:
    machine = verbs.add_parser("machine", help="the session machine: show its tables, check its invariants")
    actions = machine.add_subparsers(dest="action", required=True, metavar="ACTION")
    show = actions.add_parser("show", help="print the machine's tables, or a diagram made from them")
    formats = ("table", "mermaid", "dot", "svg")
    show.add_argument("--format", choices=formats, default="table", help="a page, or a diagram")
    check = actions.add_parser("check", help="walk every reachable state and hold the invariants")
    check.add_argument("--json", action="store_true", help="print one JSON object")
    check.add_argument(
        "--waiters", default="2", metavar="N", help="clients of a kind that may wait at once; default: 2"
    )
    mutants = check.add_mutually_exclusive_group()
    mutants.add_argument(
        "--mutants", action="store_true", help="try the mechanical mutants too, which takes minutes"
    )
    mutants.add_argument("--no-mutants", action="store_true", help="try no mutants at all")
    machine.set_defaults(run=_machine)


def _machine(arguments: argparse.Namespace) -> int:
    from inspan_core.__main__ import main as machine_main

    if arguments.action == "show":
        return machine_main(["show", "--format", arguments.format])
    flags = {
        "--json": arguments.json,
        "--mutants": arguments.mutants,
        "--no-mutants": arguments.no_mutants,
    }
    given = [flag for flag, is_given in flags.items() if is_given]
    return machine_main(["check", "--waiters", arguments.waiters, *given])
