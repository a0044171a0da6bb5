"""The Agent Server as an ASGI application."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware

from inspan_core.plugins import Plugins
from inspan_runtime.service import AgentService
from inspan_server.agent.bodies import BodyLimits
from inspan_server.agent.compat_run import CompatRuns
from inspan_server.agent.config import AgentConfig, ResourcesServerConfig
from inspan_server.agent.cookie_middleware import CookieMiddleware
from inspan_server.agent.cookies import SessionCookies
from inspan_server.agent.guard import BearerGuard
from inspan_server.agent.logs import follow_sessions
from inspan_server.agent.metrics import AgentMetrics, CountRequests
from inspan_server.agent.operations import Operations
from inspan_server.agent.owed_closes import OwedCloses
from inspan_server.agent.routes import AgentRoutes, on_http_error
from inspan_server.agent.session_paths import SessionPaths
from inspan_server.agent.state_files import admin_key, cookie_key
from inspan_server.agent.wiring import build_service

OWED_FOLDER = "resources"
log = logging.getLogger(__name__)


def create_app(
    config: AgentConfig,
    plugins: Plugins,
    *,
    model_key: Callable[[str], str] | None = None,
    retains_artifacts: bool = False,
) -> Starlette:
    """Build the Agent Server. It has to be served with its lifespan: sessions live in it.

    ``app.state.service`` is the `AgentService`, ``app.state.routes`` the `AgentRoutes`;
    ``app.state.at_shutdown``, if it is set, is called before the service ends.

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
    service.follow(follow_sessions)
    guard = Middleware(BearerGuard, token=config.bearer_token, admin_key=admin_key(config))
    return serve_sessions(
        service,
        SessionCookies(cookie_key(config)),
        config.resources_server,
        owed=OwedCloses(None if config.state_dir is None else Path(config.state_dir) / OWED_FOLDER),
        guard=guard,
        body_limits=BodyLimits(size_bytes=config.body_limit_bytes, timeout_s=config.body_timeout_seconds),
    )


def serve_sessions(
    service: AgentService,
    cookies: SessionCookies,
    resources: ResourcesServerConfig | None = None,
    *,
    owed: OwedCloses | None = None,
    guard: Middleware | None = None,
    body_limits: BodyLimits | None = None,
) -> Starlette:
    """The application over a service that is already put together."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with service:
            routes.runs.close_left()
            yield
            if app.state.at_shutdown is not None:
                app.state.at_shutdown()

    routes = AgentRoutes(service, CompatRuns(service, resources, owed or OwedCloses(None)))
    metrics = AgentMetrics(service)
    paths = [*routes.routes(), *Operations(service, routes, metrics).routes()]
    app = Starlette(
        routes=paths,
        lifespan=lifespan,
        middleware=[
            Middleware(CountRequests, metrics=metrics),
            Middleware(CookieMiddleware, cookies=cookies),
            *([] if guard is None else [guard]),
            Middleware(SessionPaths, routes=paths, body_limits=body_limits or BodyLimits()),
        ],
        exception_handlers={HTTPException: on_http_error},
    )
    app.router.redirect_slashes = False
    app.state.service = service
    app.state.at_shutdown = None
    app.state.routes = routes
    return app
