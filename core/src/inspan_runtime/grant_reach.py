"""Whether the session's servers can be used from where the harness runs, tried before any model call."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import resources
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from attrs import frozen

from inspan_core.errors import ExecTimeout, RequestRefused, SandboxError
from inspan_core.harness import HarnessSpec
from inspan_core.observations import ObservationGap
from inspan_core.sandbox import Sandbox
from inspan_core.wire import McpAccess, ToolAccess
from inspan_runtime.redaction import secrets_of

REQUIRED_LIMIT_S = 30.0
"""How long a required server may take to connect and list its tools; Codex takes as long."""

OPTIONAL_LIMIT_S = 10.0
"""How long a session waits for servers that it can do without, all of them together."""

EXEC_MARGIN_S = 20.0
REPORT_LIMIT_BYTES = 4 * 1024 * 1024
REASON_LIMIT_CHARS = 500
UNREACHED = "it cannot be reached from inside the sandbox"
"""How the probe's words begin for a server to which there was no connection, or that said nothing on it."""

DEFAULT_PORTS: Mapping[str, int] = {"http": 80, "https": 443}
LOADER = (
    "import sys; b = sys.stdin.buffer; "
    "exec(compile(b.read(int(b.readline())), 'grants', 'exec'), {'__name__': '__main__'})"
)
"""Reads the length of the probe, the probe, and leaves its orders to it."""


@frozen(kw_only=True)
class TriedGrants:
    """What trying the grants has shown.

    Attributes:
        usable: The grants that the harness gets.
        gaps: One for each optional grant that cannot be used.
    """

    usable: tuple[ToolAccess, ...]
    gaps: tuple[ObservationGap, ...] = ()


def grant_url(grant: ToolAccess) -> str:
    """Where the grant's server is."""
    return grant.connection.url if isinstance(grant, McpAccess) else grant.base_url


def loopback_urls(grants: Iterable[ToolAccess]) -> tuple[str, ...]:
    """What a sandbox has to be given of this host's loopback for these grants, each once."""
    return tuple(dict.fromkeys(url for grant in grants for url in loopback_url(grant_url(grant))))


def loopback_url(url: str) -> tuple[str, ...]:
    """The URL's server with its port where it is on this host's loopback, else nothing."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        is_loopback = host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return ()
    if not is_loopback:
        return ()
    try:
        port = parts.port or DEFAULT_PORTS[parts.scheme]
    except (ValueError, KeyError):
        return ()
    return (f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{port}",)


Report = Mapping[str, Mapping[str, Any]]
"""By name, what the probe says of each server; whom it says nothing of is not there."""


async def ask_servers(
    sandbox: Sandbox, python: str, grants: Sequence[ToolAccess], *, url: str | None = None
) -> Report:
    """Connect to each granted server, and to one by its URL, from inside the sandbox: all by one command.

    Args:
        python: An interpreter inside.
        url: Any HTTP answer of its own will do.

    Raises:
        SandboxError: The sandbox failed.
    """
    orders = [_order(grant) for grant in grants]
    if url is not None:
        orders.append({"name": url, "kind": "http", "url": url, "headers": {}, "limit_s": REQUIRED_LIMIT_S})
    return await _probe(sandbox, python, orders) if orders else {}


def url_problem(report: Report, url: str) -> str | None:
    """What keeps the server at a URL from answering inside the sandbox, or None."""
    found = report.get(url)
    if found is None:
        return "nothing is known of it"
    problem = found.get("problem")
    return None if problem is None else str(problem)[:REASON_LIMIT_CHARS]


def judge_grants(report: Report, spec: HarnessSpec, grants: Sequence[ToolAccess]) -> TriedGrants:
    """Which of the grants can be used.

    Raises:
        RequestRefused: A required grant cannot; names it and says why.
    """
    usable, gaps = [], []
    for grant in grants:
        problem = _problem(report.get(grant.name), spec)
        if problem is None:
            usable.append(grant)
            continue
        reason = f"tool grant {grant.name!r} cannot be used: {problem[:REASON_LIMIT_CHARS]}"
        for secret in sorted(secrets_of([grant], None), key=len, reverse=True):
            reason = reason.replace(secret, "[redacted]")
        if grant.required:
            raise RequestRefused(reason, field="tool_accesses")
        gaps.append(ObservationGap(code="tool_grant_unreachable", detail=reason))
    return TriedGrants(usable=tuple(usable), gaps=tuple(gaps))


async def try_grants(
    sandbox: Sandbox, python: str, spec: HarnessSpec, grants: Sequence[ToolAccess]
) -> TriedGrants:
    """Connect to each granted server from inside the sandbox, and say which can be used.

    Args:
        python: An interpreter inside.

    Raises:
        RequestRefused: A required grant cannot be used; names it and says why.
        SandboxError: The sandbox failed.
    """
    return judge_grants(await ask_servers(sandbox, python, grants), spec, grants)


async def _probe(sandbox: Sandbox, python: str, orders: Sequence[Mapping[str, Any]]) -> Report:
    source = _source()
    try:
        result = await sandbox.exec(
            [python, "-I", "-S", "-c", LOADER],
            timeout_s=max(order["limit_s"] for order in orders) + EXEC_MARGIN_S,
            cwd="/",
            stdin=b"%d\n%s%s" % (len(source), source, json.dumps(orders).encode()),
            output_limit_bytes=REPORT_LIMIT_BYTES,
        )
    except ExecTimeout as error:
        raise SandboxError("the sandbox did not get to try the servers in time") from error
    try:
        report = json.loads(result.stdout)
        return {str(each["name"]): each for each in report}
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        said = result.stderr.decode("utf-8", "replace").strip()[-REASON_LIMIT_CHARS:]
        raise SandboxError(
            f"trying the servers failed in the sandbox (exit code {result.exit_code}): {said}"
        ) from error


def _order(grant: ToolAccess) -> dict[str, Any]:
    headers = grant.connection.headers if isinstance(grant, McpAccess) else grant.headers
    return {
        "name": grant.name,
        "kind": grant.kind,
        "url": grant_url(grant),
        "headers": dict(headers),
        "limit_s": REQUIRED_LIMIT_S if grant.required else OPTIONAL_LIMIT_S,
    }


def _problem(report: Mapping[str, Any] | None, spec: HarnessSpec) -> str | None:
    if report is None:
        return "nothing is known of it"
    problem, tools = report.get("problem"), report.get("tools")
    if problem is not None:
        return str(problem)
    names = tools if isinstance(tools, list) else []
    taken = sorted({str(name) for name in names} & spec.builtin_tools)
    if taken:
        return f"its tool {taken[0]!r} has the name of a built-in tool of harness {spec.name!r}"
    return None


@cache
def _source() -> bytes:
    return resources.files("inspan_runtime").joinpath("grant_probe.py").read_bytes()
