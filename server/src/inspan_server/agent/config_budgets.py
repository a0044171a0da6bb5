"""What the times of a configuration add up to, and where they do not fit together."""

from __future__ import annotations

import math

from attrs import frozen

from inspan_core.session import Settings
from inspan_runtime.budgets import owned_sandbox_ttl_s
from inspan_runtime.service import SHUTDOWN_STEPS
from inspan_server.agent.config import AgentConfig


@frozen(kw_only=True)
class Budgets:
    """In seconds.

    Attributes:
        close_steps: How many steps a close has at most, each with a budget of its own.
        close_step_s: That budget.
        close_wait_s: What a close may wait for beside its steps: the parsing of what was collected.
        worst_close_s: All of it together.
        cleanup_timeout_s: What the Environment Server's ``cleanup_timeout_seconds`` has to be at least.
        episode_timeout_s: What its ``default_episode_timeout_seconds`` has to be at least, without the time
            that the Resources Server takes to seed and to verify.
        owned_ttl_s: How long our own sandboxes live; None: without end, or there are none.
    """

    close_steps: int
    close_step_s: float
    close_wait_s: float
    worst_close_s: float
    cleanup_timeout_s: float
    episode_timeout_s: float
    owned_ttl_s: float | None


def budgets(config: AgentConfig) -> Budgets:
    """The budgets that follow from a configuration."""
    step_s = config.session_close_timeout_seconds
    wait_s = Settings().parse_timeout_s
    worst_s = SHUTDOWN_STEPS * step_s + wait_s
    return Budgets(
        close_steps=SHUTDOWN_STEPS,
        close_step_s=step_s,
        close_wait_s=wait_s,
        worst_close_s=worst_s,
        cleanup_timeout_s=math.ceil(worst_s),
        episode_timeout_s=math.ceil(config.sandbox_install_timeout_seconds + run_limit_s(config) + worst_s),
        owned_ttl_s=_owned_ttl_s(config),
    )


def run_limit_s(config: AgentConfig) -> float:
    """Most seconds of a run."""
    return min(config.timeout, config.sandbox_runner_timeout_seconds)


def _owned_ttl_s(config: AgentConfig) -> float | None:
    ttl_s = config.sandbox_config.ttl_s
    if config.sandbox_provider is None or ttl_s is None:
        return None
    if isinstance(ttl_s, str):
        return owned_sandbox_ttl_s(
            config.sandbox_install_timeout_seconds, config.sandbox_runner_timeout_seconds
        )
    return ttl_s


def warnings_of(config: AgentConfig) -> tuple[str, ...]:
    """What is allowed and probably not meant, each in a sentence."""
    found = []
    if config.timeout > config.sandbox_runner_timeout_seconds:
        found.append(
            f"timeout is {config.timeout:g}, but sandbox_runner_timeout_seconds ends every run after "
            f"{config.sandbox_runner_timeout_seconds:g} seconds"
        )
    found += _lifetime_warnings(config)
    kinds = {name: block["kind"] for name, block in config.sandbox_providers.items()}
    found += [
        f"sandbox_providers.{name} is of kind local, which isolates nothing"
        for name, kind in kinds.items()
        if kind == "local"
    ]
    if config.host_execution:
        found.append("host_execution is true: calls without a session run on this host, without isolation")
    if not config.sandbox_providers and not config.host_execution:
        found.append("there are neither sandbox_providers nor host_execution: every session is refused")
    if config.state_dir is None:
        found.append("state_dir is null: sessions end with the server, and cookies with them")
    return tuple(found)


def _lifetime_warnings(config: AgentConfig) -> list[str]:
    if config.sandbox_provider is None:
        return []
    if config.sandbox_config.ttl_s is None:
        return ["sandbox_config.ttl_s is null: a sandbox whose server dies for good never ends by itself"]
    needed = budgets(config)
    ttl_s = needed.owned_ttl_s
    if ttl_s is not None and ttl_s < needed.episode_timeout_s:
        return [
            f"sandbox_config.ttl_s is {ttl_s:g}, but installation, run and close may take "
            f"{needed.episode_timeout_s:g} seconds: the sandbox may end before its run"
        ]
    return []
