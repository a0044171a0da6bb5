"""Record the histories that benchmarks/step.py replays: from a real Agent Server's journal, of real sessions.

    python benchmarks/data/record_histories.py [FILE]

Runs the Agent Server with the echo harness in sandboxes of provider ``local``: an owned and a borrowed
episode with clients that repeat and join, one that is closed while its harness waits for a model that never
answers, and one whose harness cannot reach its model. Writes benchmarks/data/histories.json.
"""

import contextlib
import json
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import httpx

import inspan_echo
from inspan_core import SandboxSpec, hookimpl, load_plugins
from inspan_core.journal import encode_event
from inspan_runtime.journal_sqlite import SqliteJournal
from inspan_runtime.providers.local import LocalProvider
from inspan_server.agent.app import create_app
from inspan_server.agent.config_reading import parse_config
from inspan_server.serving import served

SESSIONS = "/v1/agent_sessions"
FILE = Path(__file__).parent / "histories.json"


class LocalOnly:
    """Brings the one provider that is used."""

    @hookimpl
    def inspan_sandbox_providers(self) -> dict[str, type]:
        """Name it."""
        return {"local": LocalProvider}


@contextlib.asynccontextmanager
async def server(folder: Path, url: str, **harness: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Serve, with a journal in the folder."""
    config = parse_config(
        {
            "harness": "echo",
            "model_server": {"base_url": url, "name": "policy"},
            "sandbox_provider": "box",
            "sandbox_config": {"workdir": str(folder / "work")},
            "sandbox_providers": {"box": {"kind": "local", "runtime_dir": str(folder / "run")}},
            "runtime_cache_dir": str(folder / "cache"),
            "state_dir": str(folder / "state"),
            "cookie_secret": "the secret of a benchmark",
            "harness_options": harness,
        }
    )
    app = create_app(config, load_plugins([LocalOnly(), inspan_echo], entry_points=False))
    async with served(app, graceful_timeout_s=2) as base:
        async with httpx.AsyncClient(base_url=base, timeout=60) as client:
            yield client


async def episode(
    client: httpx.AsyncClient, name: str, access: Any, asked: anyio.Event | None = None
) -> None:
    """Seed twice, activate with two clients, close twice; with ``asked`` also once the model was asked."""
    client.cookies.clear()
    identity = {"agent_session_id": name, "episode_id": {"rollout_id": name, "attempt": 0}}
    task = {"task_id": {"taskset": "t", "task_id": "x"}, "sandbox_access": access}
    for _ in range(2):
        (await client.post(SESSIONS, json={**identity, **task})).raise_for_status()

    async def activate() -> None:
        answer = await client.post(f"/ng-rollout/{name}/v1/responses", json={"input": "true"})
        print(f"{name}: activation answered {answer.status_code}")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(activate)
        tasks.start_soon(activate)
        if asked is not None:
            await asked.wait()
            (await client.post(f"{SESSIONS}/close", json=identity)).raise_for_status()
    for _ in range(2):
        (await client.post(f"{SESSIONS}/close", json=identity)).raise_for_status()


@contextlib.asynccontextmanager
async def silent_model() -> AsyncIterator[tuple[str, anyio.Event]]:
    """A model service that takes a request and never answers."""
    asked = anyio.Event()
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)

    async def keep_waiting(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            async for _ in stream:
                asked.set()

    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, keep_waiting)
        yield f"http://127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}", asked
        tasks.cancel_scope.cancel()


async def record(folder: Path) -> list[dict[str, Any]]:
    """Run the sessions and read the journal."""
    (folder / "work").mkdir()
    provider = LocalProvider({"runtime_dir": str(folder / "run")})
    lent = await provider.create(SandboxSpec(workdir=str(folder / "work")), key="lent", timeout_s=60)
    connection = {"kind": "direct", "provider_config_ref": "box", "descriptor": dict(lent.descriptor)}
    access = {"connection": connection, "workdir": str(folder / "work")}
    nobody = "http://127.0.0.1:9"
    try:
        async with server(folder, nobody, model=False) as client:
            await episode(client, "owned", None)
            await episode(client, "borrowed", access)
        async with silent_model() as (url, asked), server(folder, url, model=True) as client:
            await episode(client, "cut", access, asked)
        async with server(folder, nobody, model=True) as client:
            await episode(client, "no-model", access)
    finally:
        await lent.stop()
    journal = SqliteJournal(folder / "state")
    stored = [
        {"name": each.name, "events": [encode_event(event) for event in each.events]}
        for each in journal.load()
    ]
    journal.close()
    return stored


def main() -> None:
    """Record, and write one event a line."""
    with tempfile.TemporaryDirectory() as temporary:
        histories = anyio.run(record, Path(temporary))
    parts = []
    for each in histories:
        events = ",\n".join(f"  {json.dumps(event)}" for event in each["events"])
        parts.append(f'{{"name": {json.dumps(each["name"])}, "events": [\n{events}\n]}}')
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else FILE
    target.write_text("[" + ",\n".join(parts) + "]\n")
    print(", ".join(f"{each['name']}: {len(each['events'])} events" for each in histories))


if __name__ == "__main__":
    main()
