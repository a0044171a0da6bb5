"""Sessions of all harnesses at once, with other configurations and keys: nothing of one is seen in others."""

import json
import secrets

import anyio
import pytest

from inspan_server.testing.replies import said, shell

from .compare import check_seen

pytestmark = [pytest.mark.sandbox, pytest.mark.registry, pytest.mark.full, pytest.mark.timeout(500)]

SESSIONS = [
    ("pi", "org/policy"),
    ("codex", "org/policy"),
    ("hermes", "org/policy"),
    ("pi", "org/other"),
    ("codex", "org/other"),
    ("hermes", "org/other"),
    ("pi", "org/policy"),
    ("codex", "org/other"),
]


async def one(world, harness, model, word, kept):
    replies = [
        shell(f"echo {word} >> mark; cat mark; wc -l < mark"),
        shell("cat mark"),
        said(f"Said {word}."),
    ]
    async with world.session(harness, replies, model=model) as session:
        await session.seed()
        await session.activate({"input": f"Do {word}.", "instructions": f"Be {word}."})
        await session.close()
        session.after = await session.look()
        session.notes["mark"] = await session.shell("cat mark")
        kept[word] = await session.seen()


async def all_at_once(world, words):
    kept = {}
    async with anyio.create_task_group() as tasks:
        for (harness, model), word in zip(SESSIONS, words, strict=True):
            tasks.start_soon(one, world, harness, model, word, kept)
    return kept


def test_eight_sessions_at_once_do_not_mix(portal, world):
    words = [secrets.token_hex(8) for _ in SESSIONS]
    kept = portal.call(all_at_once, world, words)
    for (harness, model), word in zip(SESSIONS, words, strict=True):
        seen = kept[word]
        check_seen(seen, f"Do {word}.")
        assert (seen.status, seen.how, len(seen.calls)) == (200, "completed", 3)
        assert seen.notes["mark"] == f"{word}\n"
        told = json.dumps([seen.answer, seen.closed, [call.request for call in seen.calls]])
        assert f"Be {word}." in told and f"Said {word}." in told
        assert [other for other in words if other != word and other in told] == []
        check_options(seen, harness, model == "org/other")
    # A call with another session's key would have been refused, and counted.
    assert len(set(world.keys.values())) == len(world.keys) >= len(SESSIONS)


def check_options(seen, harness, is_other):
    """The Agent Server's own options reached the model requests of its sessions, and of no other."""
    for call in seen.calls:
        if harness == "codex":
            developers = [item for item in call.request["input"] if item.get("role") == "developer"]
            assert (len(developers) == 1) == is_other
        else:
            assert (call.request.get("max_tokens") == 777) == is_other
