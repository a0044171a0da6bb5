"""From a configuration and the installed plugins to the service that runs sessions."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from attrs import evolve

from inspan_core.errors import ConfigError, ProviderUnavailable, RequestRefused, UsageError
from inspan_core.harness import HarnessSpec
from inspan_core.plugins import Plugins
from inspan_core.sandbox import Mount, SandboxProvider, SandboxSpec
from inspan_core.session import Settings
from inspan_runtime.budgets import owned_sandbox_ttl_s
from inspan_runtime.grant_reach import loopback_url
from inspan_runtime.grants import check_grants
from inspan_runtime.harness_work import OwnedSandbox
from inspan_runtime.install_build import package_client_env
from inspan_runtime.install_cache import RuntimeCache, default_cache_dir
from inspan_runtime.journal_sqlite import SqliteJournal
from inspan_runtime.perform import Supervision
from inspan_runtime.providers.state_folder import default_runtime_dir
from inspan_runtime.service import AgentService, ServiceSettings
from inspan_server.agent.config import AgentConfig
from inspan_server.agent.state_files import server_id

TRAINING_LEVEL = 5
HOST_FOLDER = "host"


def build_service(
    config: AgentConfig,
    plugins: Plugins,
    *,
    model_key: Callable[[str], str] | None = None,
    retains_artifacts: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> AgentService:
    """Put the service together; nothing is started.

    Args:
        model_key: The Model Server's key of an episode, from its capture key; by default the
            configuration's ``api_key``.
        retains_artifacts: Whether artifacts stay in memory after close, until its window ends.
        environ: Where the cache folder and the package clients' proxy settings come from.

    Raises:
        ConfigError: A part does not fit the harness or the provider.
        PluginError: No harness or provider has that name; lists what is installed and what is broken.
    """
    harness = plugins.harness(config.harness)
    spec = harness.spec
    _check_level(config, spec)
    providers = {name: _provider(plugins, name, block) for name, block in config.sandbox_providers.items()}
    journal = None
    if config.state_dir is not None:
        journal = SqliteJournal(Path(config.state_dir), sync=config.journal_sync)
    return AgentService(
        harness,
        providers,
        evolve(
            _settings(config, spec, model_key),
            retains_artifacts=retains_artifacts,
            server_id=server_id(config),
            recovery_timeout_s=config.recovery_timeout_seconds,
        ),
        cache=_cache(config, environ),
        journal=journal,
        plugins=plugins,
    )


def misfits(config: AgentConfig, plugins: Plugins) -> tuple[str, ...]:
    """What of a configuration does not fit what is installed, each in a sentence; nothing is started."""

    def fit_harness() -> None:
        spec = plugins.harness(config.harness).spec
        _check_level(config, spec)
        harness_options(spec, config.harness_options)

    checks: list[Callable[[], object]] = [fit_harness]
    checks += [partial(_provider, plugins, name, block) for name, block in config.sandbox_providers.items()]
    found = []
    for check in checks:
        try:
            check()
        except (UsageError, ProviderUnavailable) as error:
            found.append(str(error))
    return tuple(found)


def refused_grants(config: AgentConfig, plugins: Plugins) -> tuple[str, ...]:
    """Why every seed that brings no other grants of these names would be refused."""
    try:
        check_grants(plugins.harness(config.harness).spec, config.tool_accesses)
    except RequestRefused as refusal:
        return (f"every session is refused: {refusal}",)
    return ()


def _check_level(config: AgentConfig, spec: HarnessSpec) -> None:
    if config.token_id_capture and spec.level < TRAINING_LEVEL:
        raise ConfigError(
            f"token_id_capture is true, but harness {spec.name!r} is of level {spec.level}: "
            f"capture needs level {TRAINING_LEVEL}"
        )


def harness_options(spec: HarnessSpec, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """The harness's declared defaults with the configuration's options over them.

    Raises:
        ConfigError: An option is not declared, or its value is of another type than its default.
    """
    for name, value in given.items():
        if name not in spec.options:
            near = difflib.get_close_matches(name, spec.options, n=1)
            hint = f"did you mean {near[0]}?" if near else f"it has: {', '.join(spec.options) or 'none'}"
            raise ConfigError(f"harness_options.{name} is not an option of harness {spec.name!r}; {hint}")
        default = spec.options[name]
        if default is not None and not _is_like(value, default):
            expected = type(default).__name__
            raise ConfigError(f"harness_options.{name} is {value!r}, expected a value of type {expected}")
    options = {**spec.options, **given}
    if spec.check_options is not None:
        try:
            spec.check_options(options)
        except ConfigError as error:
            raise ConfigError(f"harness_options: {error}") from error
    return options


def _is_like(value: Any, default: Any) -> bool:
    if isinstance(default, float):
        return type(value) in (int, float)
    return type(value) is type(default)


def _provider(plugins: Plugins, name: str, block: Mapping[str, Any]) -> Callable[[], SandboxProvider]:
    options = {key: value for key, value in block.items() if key != "kind"}
    factory = partial(plugins.provider_factory(block["kind"]), options)
    try:
        factory()
    except (TypeError, ValueError) as error:
        raise ConfigError(f"sandbox_providers.{name}: {error}") from error
    return factory


def _settings(
    config: AgentConfig, spec: HarnessSpec, model_key: Callable[[str], str] | None
) -> ServiceSettings:
    api_key = config.model_server.api_key or "none"
    return ServiceSettings(
        model_base_url=config.model_server.base_url,
        model_name=config.model_server.name,
        model_key=model_key or (lambda _: api_key),
        run_timeout_s=min(config.timeout, config.sandbox_runner_timeout_seconds),
        concurrency=config.concurrency,
        session=Settings(
            install_timeout_s=config.sandbox_install_timeout_seconds,
            close_step_timeout_s=config.session_close_timeout_seconds,
            retry_window_s=config.session_close_retry_window_seconds,
        ),
        supervision=Supervision(drain=config.process_drain),
        session_dir_root=config.session_dir_root,
        host_dir=_host_dir(config),
        owned=_owned(config),
        options=harness_options(spec, config.harness_options),
        tool_accesses=config.tool_accesses,
    )


def _host_dir(config: AgentConfig) -> str | None:
    if not config.host_execution:
        return None
    root = default_runtime_dir() if config.state_dir is None else Path(config.state_dir)
    return str(root / HOST_FOLDER)


def _owned(config: AgentConfig) -> OwnedSandbox | None:
    if config.sandbox_provider is None:
        return None
    wanted = config.sandbox_config
    ttl_s = wanted.ttl_s
    if ttl_s == "auto":
        ttl_s = owned_sandbox_ttl_s(
            config.sandbox_install_timeout_seconds, config.sandbox_runner_timeout_seconds
        )
    spec = SandboxSpec(
        workdir=wanted.workdir,
        root=wanted.root,
        image=wanted.image,
        env=wanted.env,
        ttl_s=ttl_s,
        labels=wanted.labels,
        mounts=tuple(
            Mount(source=each.source, target=each.target, read_only=each.read_only) for each in wanted.mounts
        ),
        reach=(*wanted.reach, *loopback_url(config.model_server.base_url)),
        cpu=wanted.cpu,
        memory_mib=wanted.memory_mib,
        pids=wanted.pids,
    )
    return OwnedSandbox(provider=config.sandbox_provider, spec=spec)


def _cache(config: AgentConfig, environ: Mapping[str, str]) -> RuntimeCache:
    root = config.runtime_cache_dir
    folder = default_cache_dir(environ) if root is None else Path(root)
    return RuntimeCache(folder, client_env=package_client_env(environ))
