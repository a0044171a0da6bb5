"""Which host ports a sandbox reaches, from the URLs of its specification."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address
from urllib.parse import urlsplit

from inspan_core.errors import ConfigError

Address = tuple[str, int]
_DEFAULT_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}


def loopback_addresses(urls: Sequence[str]) -> list[Address]:
    """Return the (address, port) pairs of URLs, each once.

    Raises:
        ConfigError: A URL does not name the loopback interface, or has no port.
    """
    found: list[Address] = []
    for url in urls:
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port or _DEFAULT_PORTS.get(parts.scheme)
        except ValueError as error:
            raise ConfigError(f"reach: {url!r} is not a URL: {error}") from error
        address = "127.0.0.1" if host == "localhost" else host
        if not (address.startswith("127.") or address == "::1"):
            raise ConfigError(
                f"reach: {url!r} does not name the loopback interface (127.0.0.1, ::1, localhost)"
            )
        if port is None:
            raise ConfigError(f"reach: {url!r} names no port")
        if (address, port) not in found:
            found.append((address, port))
    return found


def loopback_address(url: str) -> Address | None:
    """Return the (address, port) of a URL on this host's loopback; None for any other."""
    try:
        address = loopback_addresses([url])[0]
        return address if ip_address(address[0]).is_loopback else None
    except (ConfigError, ValueError):
        return None


def at_port(url: str, port: int) -> str:
    """Return a URL with another port."""
    parts = urlsplit(url)
    user, at, _ = parts.netloc.rpartition("@")
    host = parts.hostname or ""
    shown = f"[{host}]" if ":" in host else host
    return parts._replace(netloc=f"{user}{at}{shown}:{port}").geturl()
