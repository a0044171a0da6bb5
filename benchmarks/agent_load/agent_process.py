"""An Agent Server over in-memory sandboxes. Usage: agent_process.py PORT [STATE_DIR [SYNC]]."""

from __future__ import annotations

import logging
import sys

import anyio
from starlette.applications import Starlette

from agent_load.memory_sandbox import NothingHarness
from inspan_core.plugins import load_plugins
from inspan_server.agent.app import create_app
from inspan_server.agent.config_reading import parse_config
from inspan_server.collector import tune_collector
from inspan_server.serving import served


def application(state_dir: str | None) -> Starlette:
    """The server's application, over sandboxes that are dictionaries."""
    config = parse_config(
        {
            "harness": "nothing",
            "model_server": {"base_url": "http://127.0.0.1:9", "name": "policy"},
            "sandbox_provider": "box",
            "sandbox_config": {"workdir": "/tmp"},  # It is looked for, on this host.
            "sandbox_providers": {"box": {"kind": "memory", "connects_to_any": True}},
            "state_dir": state_dir,
            "session_close_retry_window_seconds": 3600,
        }
    )
    return create_app(config, load_plugins([NothingHarness()], entry_points=False))


async def main(port: int, state_dir: str | None) -> None:
    app = application(state_dir)
    tune_collector()  # As `inspan serve` does.
    async with served(app, port=port) as url:
        print(url, flush=True)
        await anyio.sleep_forever()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    anyio.run(main, int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
