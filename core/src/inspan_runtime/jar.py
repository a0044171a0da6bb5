"""The cookie jar of an episode's tools, as the run left it: read after the receipt, kept a secret."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from attrs import field, frozen

from inspan_core.errors import ArtifactError, TooLarge, UnsafePath
from inspan_core.function_tools import JAR, JAR_LIMIT_BYTES, changed_cookies, direct_http_grant
from inspan_core.observations import ObservationGap
from inspan_core.wire import ToolAccess
from inspan_runtime.room import Room


@frozen(kw_only=True)
class TakenJar:
    """What became of the jar.

    Attributes:
        cookies: The whole jar where tool calls changed it, else None.
        gaps: One where that is not known.
    """

    cookies: Mapping[str, str] | None = field(default=None, repr=False)
    gaps: tuple[ObservationGap, ...] = ()


async def take_jar(room: Room, grants: Iterable[ToolAccess], request: Mapping[str, Any]) -> TakenJar:
    """Read the jar of a run that had tools of a ``direct_http`` grant; of another run there is none.

    Raises:
        SandboxError: The connection broke.
    """
    grant = direct_http_grant(grants)
    if grant is None or not request.get("tools"):
        return TakenJar()
    path = f"{room.session_dir}/{JAR}"
    try:
        content = await room.connected.download(path, limit_bytes=JAR_LIMIT_BYTES)
        cookies = changed_cookies(grant.cookies, content.data)
    except (FileNotFoundError, UnsafePath, TooLarge, ArtifactError) as error:
        detail = f"whether tool calls changed the cookies is not known: {error}"
        return TakenJar(gaps=(ObservationGap(code="resources_cookies_unavailable", detail=detail),))
    pack = None if cookies is None else (lambda: json.dumps(dict(cookies)).encode())
    room.keep("cookies", pack, secret=True)
    return TakenJar(cookies=cookies)
