"""`inspan config check` and `inspan config show`."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import yaml

from inspan_core.errors import ConfigError, UsageError
from inspan_core.plugins import load_plugins
from inspan_runtime.providers import builtin
from inspan_server.agent.config import AgentConfig
from inspan_server.agent.config_budgets import Budgets, budgets, warnings_of
from inspan_server.agent.config_programs import lacking_programs
from inspan_server.agent.config_reading import read_config
from inspan_server.agent.config_secrets import shown
from inspan_server.agent.state_files import check_state_dir
from inspan_server.agent.wiring import misfits, refused_grants
from inspan_server.cli.exit_codes import DONE, USAGE
from inspan_server.cli.serve import check_exposure, check_tls


def check_config(path: str, *, as_json: bool, is_strict: bool) -> int:
    """Print what is wrong with a configuration, what is doubtful, and what its times add up to.

    Returns:
        0; 2 when it cannot be served, or when there are warnings and `is_strict`.
    """
    errors: tuple[str, ...]
    warnings: tuple[str, ...]
    config: AgentConfig | None = None
    try:
        config = read_config(Path(path))
    except ConfigError as error:
        errors, warnings = (str(error),), ()
    else:
        plugins = load_plugins([builtin])
        errors = (*misfits(config, plugins), *_unservable(config))
        broken = (f"a plugin is broken: {each}" for each in plugins.problems)
        unfit = () if errors else (*lacking_programs(config), *refused_grants(config, plugins))
        warnings = (*warnings_of(config), *unfit, *broken)
    if as_json:
        figures = None if config is None else attrs.asdict(budgets(config))
        told = {"ok": not errors, "errors": errors, "warnings": warnings, "budgets": figures}
        print(json.dumps(told, indent=2))
    else:
        for kind, sentences in (("error", errors), ("warning", warnings)):
            for sentence in sentences:
                print(f"{kind}: {sentence}")
        if config is not None:
            print("\n".join(_figures(budgets(config))))
        if not errors:
            print(f"{path} can be served")
    return USAGE if errors or (is_strict and warnings) else DONE


def _unservable(config: AgentConfig) -> list[str]:
    """What `inspan serve` would refuse before it listens."""
    found: list[str] = []
    exposure, folder = partial(check_exposure, config, config.host), partial(check_state_dir, config)
    for check in (exposure, partial(check_tls, config), folder):
        try:
            check()
        except UsageError as error:
            found.append(str(error))
    return found


def show_config(path: str, *, as_json: bool) -> int:
    """Print a configuration with every default filled in.

    Returns:
        0.

    Raises:
        ConfigError: It cannot be read.
    """
    config = read_config(Path(path))
    whole: dict[str, Any] = shown(config)
    if as_json:
        print(json.dumps({**whole, "budgets": attrs.asdict(budgets(config))}, indent=2))
    else:
        print(yaml.safe_dump(whole, sort_keys=False, allow_unicode=True), end="")
        print("\n".join(f"# {line}" for line in _figures(budgets(config))))
    return DONE


def _figures(found: Budgets) -> list[str]:
    lines = [
        f"worst close: {found.close_steps} steps x {found.close_step_s:g} s + {found.close_wait_s:g} s to "
        f"parse = {found.worst_close_s:g} s",
        f"the Environment Server needs cleanup_timeout_seconds of {found.cleanup_timeout_s:g} or more",
        "and default_episode_timeout_seconds above "
        f"{found.episode_timeout_s:g} (installation, run, close) plus its seed and verification",
    ]
    if found.owned_ttl_s is not None:
        lines.append(f"a sandbox of ours ends by itself after {found.owned_ttl_s:g} s")
    return lines
