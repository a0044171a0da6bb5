"""Hypercorn with an application that answers two bytes: what three requests cost by themselves."""

from __future__ import annotations

from typing import Any

import anyio

from inspan_server.serving import served

HEADERS = [(b"content-type", b"application/json"), (b"content-length", b"2"), (b"set-cookie", b"a=b; Path=/")]


async def app(scope: Any, receive: Any, send: Any) -> None:
    """See the ASGI specification."""
    if scope["type"] == "lifespan":
        for word in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{word}.complete"})
        return
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    await send({"type": "http.response.body", "body": b"{}"})


async def main() -> None:
    """Serve until it is killed."""
    async with served(app) as url:
        print(url, flush=True)
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(main)
