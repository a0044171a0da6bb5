"""The Agent Server as an ASGI application."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware

from inspan_core.errors import ConfigError
from inspan_core.plugins import Plugins
from inspan_runtime.service import AgentService
from inspan_server.agent.config import AgentConfig, ResourcesServerConfig
from inspan_server.agent.cookie_middleware import CookieMiddleware
from inspan_server.agent.cookies import SessionCookies
from inspan_server.agent.routes import AgentRoutes, on_http_error
from inspan_server.agent.session_paths import SessionPaths
from inspan_server.agent.wiring import build_service

SECRET_BYTES = 32
COOKIE_KEY_FILE = "cookie.key"
log = logging.getLogger(__name__)


def create_app(
    config: AgentConfig,
    plugins: Plugins,
    *,
    model_key: Callable[[str], str] | None = None,
    retains_artifacts: bool = False,
) -> Starlette:
    """Build the Agent Server. It has to be served with its lifespan: sessions live in it.

    ``app.state.service`` is the `AgentService`, ``app.state.routes`` the `AgentRoutes`.

    Args:
        model_key: The Model Server's key of an episode, from its capture key; by default the
            configuration's ``api_key`` for all.
        retains_artifacts: Whether artifacts stay in memory after close, until its window ends.

    Raises:
        ConfigError: The configuration does not fit the harness or a provider.
        PluginError: There is no such harness or provider.
    """
    for problem in plugins.problems:
        log.warning("a plugin is broken: %s", problem)
    service = build_service(config, plugins, model_key=model_key, retains_artifacts=retains_artifacts)
    return serve_sessions(service, SessionCookies(_cookie_key(config)), config.resources_server)


def _cookie_key(config: AgentConfig) -> bytes:
    """The configured secret, or one of our own, kept with the sessions whose cookies it signs."""
    if config.cookie_secret is not None:
        return config.cookie_secret.encode()
    if config.state_dir is None:
        return secrets.token_bytes(SECRET_BYTES)
    path = Path(config.state_dir) / COOKIE_KEY_FILE
    try:
        if not path.exists():
            _make_key(path)
        with path.open("rb") as file:
            key = file.read(SECRET_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path} cannot be had: {error.strerror}") from error
    if len(key) != SECRET_BYTES:
        raise ConfigError(
            f"{path} does not hold {SECRET_BYTES} bytes, as a key does: remove it to get a new one"
        )
    return key


def _make_key(path: Path) -> None:
    """Whole or not at all: a server that is killed here must not keep the next one from starting."""
    draft = path.with_suffix(".part")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "wb") as file:
        file.write(secrets.token_bytes(SECRET_BYTES))
    draft.rename(path)


def serve_sessions(
    service: AgentService, cookies: SessionCookies, resources: ResourcesServerConfig | None = None
) -> Starlette:
    """The application over a service that is already put together."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with service:
            yield

    routes = AgentRoutes(service, resources)
    app = Starlette(
        routes=routes.routes(),
        lifespan=lifespan,
        middleware=[
            Middleware(CookieMiddleware, cookies=cookies),
            Middleware(SessionPaths, routes=routes.routes()),
        ],
        exception_handlers={HTTPException: on_http_error},
    )
    app.router.redirect_slashes = False
    app.state.service = service
    app.state.routes = routes
    return app
