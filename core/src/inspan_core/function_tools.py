"""The functions of a request as tools of a ``direct_http`` grant: for plugins, pure.

The request's function `tools` are the tools, the grant says where they are called. A plugin reads them with
`granted_functions`, gives the shim what `bridge_order` makes of them (`inspan_core.tool_bridge` says what
becomes of it), and asks `missing_tools` when it parses: a run whose harness did not get its tools is not
gradable.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, cast

from attrs import frozen

from inspan_core.errors import ArtifactError, RequestRefused
from inspan_core.harness import Artifacts, HarnessSpec
from inspan_core.json_shapes import is_object, is_sequence
from inspan_core.wire import DirectHttpAccess, ToolAccess

JAR = "cookies.json"
READY = "tools.ready"
JAR_LIMIT_BYTES = 256 * 1024
READY_LIMIT_BYTES = 256 * 1024
COOKIES_LIMIT = 1000
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What model APIs take for the name of a function."""

COOKIE_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}")
COOKIE_VALUE = re.compile(r"[^\x00-\x1f\x7f]{0,8192}")


@frozen(kw_only=True)
class FunctionTool:
    """One function that the model may call.

    Attributes:
        parameters: JSON Schema of the arguments' object.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """As `inspan_core.tool_bridge` takes it."""
        return {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}


def direct_http_grant(grants: Iterable[ToolAccess]) -> DirectHttpAccess | None:
    """The grant that a request's functions belong to: there is one at most."""
    return next((grant for grant in grants if isinstance(grant, DirectHttpAccess)), None)


def read_functions(
    request: Mapping[str, Any],
    spec: HarnessSpec,
    grant: DirectHttpAccess | None,
    *,
    taken: Collection[str] = (),
) -> tuple[FunctionTool, ...]:
    """The request's functions, checked.

    Args:
        taken: Names beside the declared built-in ones that a function must not have.

    Raises:
        RequestRefused: There is no grant to call them by, one is no function, or its name does not fit or is
            that of a built-in tool.
    """
    given = request.get("tools") or ()
    if not is_sequence(given):
        raise RequestRefused("`tools` must be a list", field="tools")
    if given and grant is None:
        raise RequestRefused(
            f"{spec.name} calls the functions of `tools` by a tool grant of kind direct_http, and this "
            "session has none: `tools` must be empty",
            field="tools",
        )
    tools = [_function(tool, index, spec) for index, tool in enumerate(given)]
    seen: set[str] = set()
    for tool in tools:
        if tool.name in spec.builtin_tools or tool.name in taken:
            raise RequestRefused(
                f"function {tool.name!r} of `tools` has the name of a built-in tool of {spec.name}",
                field="tools",
            )
        if tool.name in seen:
            raise RequestRefused(f"`tools` has two functions named {tool.name!r}", field="tools")
        seen.add(tool.name)
    return tuple(tools)


def granted_functions(
    request: Mapping[str, Any],
    spec: HarnessSpec,
    grants: Iterable[ToolAccess],
    *,
    taken: Collection[str] = (),
) -> tuple[DirectHttpAccess, tuple[FunctionTool, ...]] | None:
    """The request's functions with the grant that they are called by; None: there are none.

    Args:
        taken: See `read_functions`.

    Raises:
        RequestRefused: As `read_functions` does.
    """
    grant = direct_http_grant(grants)
    functions = read_functions(request, spec, grant, taken=taken)
    return None if grant is None or not functions else (grant, functions)


def _function(tool: Any, index: int, spec: HarnessSpec) -> FunctionTool:
    if not is_object(tool) or tool.get("type") != "function":
        kind = tool.get("type") if is_object(tool) else type(tool).__name__
        raise RequestRefused(
            f"`tools[{index}]` is of type {kind!r}; {spec.name} takes functions only", field="tools"
        )
    name, description, parameters = tool.get("name"), tool.get("description"), tool.get("parameters")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise RequestRefused(
            f"`tools[{index}].name` is {name!r}, expected 1 to 64 letters, digits, '_' or '-'", field="tools"
        )
    if description is not None and not isinstance(description, str):
        raise RequestRefused(f"`tools[{index}].description` must be a string", field="tools")
    schema: Mapping[str, Any] = {} if parameters is None else parameters
    if not is_object(schema) or schema.get("type", "object") != "object":
        raise RequestRefused(
            f"`tools[{index}].parameters` must be the JSON Schema of an object", field="tools"
        )
    full: dict[str, Any] = {"type": "object", "properties": {}, **schema}
    return FunctionTool(name=name, description=description or "", parameters=full)


def bridge_order(
    grant: DirectHttpAccess,
    functions: Iterable[FunctionTool],
    *,
    token: str,
    url_mark: str,
    timeout_s: float,
    fetched_is_ready: bool,
) -> dict[str, Any]:
    """What ``input.json`` holds under ``tool_bridge``.

    Args:
        token: A new secret: what the harness shows the bridge.
        url_mark: Text that stands for the bridge's URL in ``files``, unlike any other there.
        timeout_s: Seconds that one call may take.
        fetched_is_ready: Whether fetching the tools is all that the harness does to have them; else it
            writes `READY` itself.
    """
    return {
        "base_url": grant.base_url,
        "headers": dict(grant.headers),
        "cookies": dict(grant.cookies),
        "tools": [function.to_json() for function in functions],
        "token": token,
        "url_mark": url_mark,
        "timeout_s": timeout_s,
        "fetched_is_ready": fetched_is_ready,
    }


def missing_tools(artifacts: Artifacts, request: Mapping[str, Any]) -> str | None:
    """Why the run's harness did not have the request's functions; None when it had, or there were none."""
    given = cast(Sequence[Any], request.get("tools") or ())
    wanted = {str(tool.get("name")) for tool in given if is_object(tool)}
    if not wanted:
        return None
    data = artifacts.files.get(READY)
    if data is None:
        return f"the harness did not report that it has its tools: there is no {READY}"
    try:
        report: Any = json.loads(data)
    except (ValueError, RecursionError):
        return f"the harness's report of its tools, {READY}, is not JSON"
    listed = report.get("tools") if is_object(report) else None
    had = {str(name) for name in cast(Sequence[Any], listed)} if isinstance(listed, list) else set[str]()
    if had != wanted:
        return f"the harness had other tools than the request: {', '.join(sorted(had ^ wanted))}"
    return None


def changed_cookies(initial: Mapping[str, str], data: bytes) -> Mapping[str, str] | None:
    """The jar that a run left, or None: unchanged.

    Args:
        initial: The grant's cookies.
        data: The content of `JAR`, which the sandbox's processes could write.

    Raises:
        ArtifactError: It is malformed, or holds what cannot be a cookie.
    """
    try:
        value: Any = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{JAR} is not JSON") from error
    if not is_object(value) or set(value) != {"cookies"}:
        raise ArtifactError(f"{JAR} has not the shape of a jar")
    cookies = value["cookies"]
    if cookies is None:
        return None
    if not is_object(cookies) or len(cookies) > COOKIES_LIMIT:
        raise ArtifactError(f"{JAR} holds no object of at most {COOKIES_LIMIT} cookies")
    for name, text in cookies.items():
        fits = isinstance(text, str) and COOKIE_NAME.fullmatch(name) and COOKIE_VALUE.fullmatch(text)
        if not fits:
            raise ArtifactError(f"{JAR} holds something that cannot be a cookie")
    return None if cookies == dict(initial) else cookies
