"""Cookies as the field's Environment Servers treat them: one jar for each server of an episode.

The jar keeps what a seed set, and is *replaced* by what an activation sets. Values that hold characters
beyond a cookie's plain ones are sent back in double quotes.
"""

from __future__ import annotations

from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie

import httpx


def cookies_set_by(response: httpx.Response) -> dict[str, str]:
    """Names and values of all cookies of an answer."""
    jar: dict[str, str] = {}
    for header in response.headers.get_list("set-cookie"):
        parsed: SimpleCookie = SimpleCookie()
        try:
            parsed.load(header)
        except CookieError:
            continue
        jar.update({name: morsel.value for name, morsel in parsed.items()})
    return jar


def cookie_header(jar: Mapping[str, str]) -> dict[str, str]:
    """The header that sends a jar; none for an empty one."""
    encoder: SimpleCookie = SimpleCookie()
    pairs = [f"{name}={encoder.value_encode(value)[1]}" for name, value in jar.items()]
    return {"cookie": "; ".join(pairs)} if pairs else {}
