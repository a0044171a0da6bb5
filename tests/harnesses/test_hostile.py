"""Tools of the model that replace the files of the session: bounded, told, and nothing else is read."""

import json

import pytest

from inspan_server.testing.replies import said, shell

from .faults import HARNESSES, TIME_LIMIT_S
from .world import SESSIONS

pytestmark = [pytest.mark.sandbox, pytest.mark.registry, pytest.mark.full, pytest.mark.timeout(300)]

FILES = "events.jsonl output.json ready.json session.jsonl runtime_info.json stderr.log output.log"
REPLACE = {
    "a link": "ln -s /etc/passwd $f",
    "a pipe": "mkfifo $f",
    "a folder": "mkdir $f",
    "a sparse file": "truncate -s 1T $f",
}


async def hostile_run(world, harness, replace):
    command = (
        f"for d in {SESSIONS}/*/; do for n in {FILES}; do f=$d$n; rm -f $f; {replace}; done; done; echo done"
    )
    async with world.session(harness, [shell(command), said()]) as session:
        await session.seed()
        # A program that opens a pipe to which nobody listens waits until its time ends.
        limit = {"agent_timeout_sec": TIME_LIMIT_S[harness]}
        await session.activate({"input": "Do the thing.", "metadata": limit})
        await session.close()
        session.after = await session.look()
        return await session.seen()


@pytest.mark.parametrize("harness", HARNESSES)
@pytest.mark.parametrize("kind", REPLACE)
def test_replaced_files(portal, world, harness, kind):
    seen = portal.call(hostile_run, world, harness, REPLACE[kind])
    assert (seen.close_status, seen.after["sessions"]) == (200, [])
    assert seen.receipt.cleanup_confirmed
    # What is lost is told, and a run without its evidence is not graded.
    assert {"artifact_unsafe", "artifact_too_large"} & seen.gaps
    assert (seen.status, seen.gradable) == (503, False)
    assert "root:" not in json.dumps([seen.answer, seen.closed])
