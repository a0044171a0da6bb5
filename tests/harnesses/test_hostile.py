"""Tools of the model that replace the files of the session: bounded, told, and nothing else is read."""

import json

import pytest

from .faults import HARNESSES, said, shell
from .world import SESSIONS

pytestmark = [pytest.mark.sandbox, pytest.mark.registry, pytest.mark.full, pytest.mark.timeout(300)]

REPLACE = {
    "a link": "rm -f $f; ln -s /etc/passwd $f",
    "a pipe": "rm -f $f; mkfifo $f",
    "a folder": "rm -f $f; mkdir $f",
    "a sparse file": "rm -f $f; truncate -s 1T $f",
}


async def hostile_run(world, harness, replace):
    files = "events.jsonl output.json ready.json session.jsonl runtime_info.json stderr.log output.log"
    command = f"for d in {SESSIONS}/*/; do for n in {files}; do f=$d$n; {replace}; done; done; echo done"
    async with world.session(harness, [shell(command), said()]) as session:
        await session.seed()
        await session.activate({"input": "Do the thing."})
        await session.close()
        session.after = await session.look()
        return await session.seen()


@pytest.mark.parametrize("harness", HARNESSES)
@pytest.mark.parametrize("kind", REPLACE)
def test_replaced_files(portal, world, harness, kind):
    seen = portal.call(hostile_run, world, harness, REPLACE[kind])
    assert seen.close_status == 200
    assert seen.receipt.cleanup_confirmed
    assert "root:" not in json.dumps([seen.answer, seen.closed])
