"""Whole episodes of real harnesses with direct_http tools: what they did is in the cookie alone."""

import json

import anyio
import pytest

from inspan_core.hookspecs import hookimpl

pytestmark = [pytest.mark.anyio, pytest.mark.sandbox, pytest.mark.registry, pytest.mark.timeout(300)]
full = pytest.mark.full
each_harness = pytest.mark.parametrize("harness", ["pi", "codex", "hermes"])

NEEDLES = "sk-canary-471[1]|canary-of-the-gran[t]"
"""The key and the token of the grant, so that the command itself does not hold them."""

USAGE = {"prompt_tokens": 100, "completion_tokens": 20}


def function(name):
    return {"type": "function", "name": name}


def calls(*names_and_arguments):
    made = [{"name": name, "arguments": arguments} for name, arguments in names_and_arguments]
    return {"tool_calls": made, "usage": USAGE}


SAID = {"content": "Booked.", "usage": USAGE}


def outputs(response):
    return [item["output"] for item in response["output"] if item["type"] == "function_call_output"]


@pytest.mark.parametrize("harness", ["pi", *(pytest.param(name, marks=full) for name in ("codex", "hermes"))])
async def test_an_episode_is_verified_by_the_cookie_that_its_tools_changed(world, harness):
    look = (
        "cat /tmp/inspan/*/* /run/inspan/*/* 2>/dev/null; env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline"
    )
    find = f"grep -rlE '{NEEDLES}' /tmp /run /app /dev/shm 2>/dev/null; echo looked"
    replies = [
        calls(("book", {"room": "12"}), ("book", {"room": "14"})),
        calls(("basket", {})),
        calls(("refuse", {})),
        calls(("shell", {"command": look})),
        calls(("shell", {"command": find})),
        SAID,
    ]
    async with world(harness, replies) as w:
        seeded = await w.seed()
        assert seeded.status_code == 200, seeded.text
        ran = await w.activate()
        kept = w.kept()
        closed = await w.close()
    assert (ran.status_code, ran.json().get("status")) == (200, "completed"), ran.text
    response = ran.json()
    assert w.hotel.seen == [
        ("book", {"room": "12"}),
        ("book", {"room": "14"}),
        ("basket", {}),
        ("refuse", {}),
    ]
    cookies = closed["resources_cookies"]
    assert w.hotel.reward(w.initial, cookies) == 1.0
    assert set(cookies) == {"stay"}
    booked, again, basket, refused, looked, found = outputs(response)
    assert '{"ok":true,"rooms":1}' in booked and '{"ok":true,"rooms":2}' in again
    assert '["12","14"]' in basket
    assert "409" in refused and "fully booked" in refused
    tools = [r for r in closed["agent_observations"]["records"] if r["kind"] == "tool_call"]
    assert [(t["tool_name"], t["status"]) for t in tools][:4] == [
        ("book", "completed"),
        ("book", "completed"),
        ("basket", "completed"),
        ("refuse", "failed"),
    ]
    assert response["tools"] == w.tools
    # The key and the grant's header are in no file, environment or command line once the harness runs.
    assert "PATH=" in looked and "looked" in found
    for secret in (w.key, w.token):
        assert secret not in looked
    assert "/" not in found.partition("looked")[0].rpartition("Output:")[2]
    for secret in (w.key, w.token, cookies["stay"]):
        assert secret.encode() not in kept
        assert secret not in ran.text
        assert secret not in json.dumps(closed["agent_observations"])
    names = [
        tool.get("name") or tool["function"]["name"] for tool in w.capture.calls("r1")[0].request["tools"]
    ]
    expected = {
        "pi": {"book", "basket", "refuse"},
        "hermes": {"book", "basket", "refuse"},
        "codex": {"mcp__hotel_tools"},
    }[harness]
    assert expected <= set(names)


@full
@each_harness
async def test_what_tools_did_before_a_close_cut_the_run_off_is_in_the_jar(world, harness):
    replies = [calls(("book", {"room": "12"})), calls(("shell", {"command": "sleep 4711.5"}))]
    async with world(harness, replies) as w:
        assert (await w.seed()).status_code == 200
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(w.activate)
            with anyio.fail_after(60):
                while len(w.capture.calls("r1")) < 2:
                    await anyio.sleep(0.05)
            closed = await w.close()
            again = await w.close()
    assert w.hotel.basket(closed["resources_cookies"]) == ["12"]
    assert again == closed


@full
@each_harness
async def test_a_jar_that_nothing_changed_is_none(world, harness):
    async with world(harness, [calls(("basket", {})), SAID]) as w:
        await w.seed()
        ran = await w.activate()
        closed = await w.close()
    assert (ran.status_code, "[]" in outputs(ran.json())[0]) == (200, True)
    assert closed["resources_cookies"] is None


@full
@each_harness
async def test_without_functions_there_is_no_bridge_and_nothing_is_missed(world, harness):
    async with world(harness, [SAID]) as w:
        await w.seed()
        ran = await w.activate(tools=[])
        closed = await w.close()
    assert ran.status_code == 200
    assert (closed["resources_cookies"], closed["agent_observations"]["gaps"]) == (None, [])


class Tampering:
    """Changes what the plugin staged, as a program that does not do what it is told would."""

    def __init__(self, change):
        self.change = change

    @hookimpl(wrapper=True)
    def inspan_stage(self, context):
        staged = yield

        async def changed():
            command = await staged
            order = json.loads(await context.read_text("input.json", limit_bytes=1 << 20))
            self.change(order)
            await context.upload_text("input.json", json.dumps(order))
            return command

        return changed()


def idle_extension(order):
    order["files"]["tools.mjs"] = "export default () => {};"


def broken_extension(order):
    order["files"]["tools.mjs"] = "export default () => { nonsense("


def other_tools(order):
    order["tool_bridge"]["tools"].pop()


def no_bridge(order):
    config = order["files"]["home/config.toml"].split("[mcp_servers")
    order["files"]["home/config.toml"] = config[0]


def wrong_token(order):
    order["tool_bridge"]["token"] = "another"


BROKEN = [
    pytest.param("pi", idle_extension, 1, id="pi-idle"),
    pytest.param("pi", broken_extension, 0, id="pi-broken", marks=full),
    pytest.param("pi", other_tools, 0, id="pi-other", marks=full),
    pytest.param("pi", wrong_token, 0, id="pi-token", marks=full),
    pytest.param("codex", no_bridge, 1, id="codex-none"),
    pytest.param("codex", wrong_token, 0, id="codex-token", marks=full),
]


@pytest.mark.parametrize(("harness", "change", "asked"), BROKEN)
async def test_a_harness_that_did_not_get_its_tools_is_not_gradable(world, harness, change, asked):
    async with world(harness, [SAID], Tampering(change)) as w:
        await w.seed()
        ran = await w.activate()
        await w.close()
    assert (ran.status_code, len(w.capture.calls("r1"))) == (503, asked), ran.text
    assert "tools" in ran.json()["detail"]["message"]


REFUSED = [
    (
        {"tools": [function("bash"), function("exec_command"), function("terminal")]},
        "has the name of a built-in tool",
    ),
    ({"tools": [{"type": "web_search"}]}, "takes functions only"),
    ({"tools": [function("a b")]}, "expected 1 to 64 letters"),
    ({"tools": [function("a"), function("a")]}, "two functions named"),
]


@full
@each_harness
@pytest.mark.parametrize(("request_", "words"), REFUSED)
async def test_functions_that_the_harness_cannot_take_are_refused(world, harness, request_, words):
    async with world(harness, []) as w:
        await w.seed()
        refused = await w.activate(**request_)
        closed = await w.close()
    assert (refused.status_code, words in refused.text) == (422, True), refused.text
    assert (closed["resources_cookies"], w.capture.calls("r1")) == (None, ())


@full
@each_harness
async def test_a_tool_server_that_is_not_there_is_refused_at_seed(world, harness):
    async with world(harness, []) as w:
        refused = await w.seed(base_url="http://127.0.0.1:9/hotel")
        left_out = await w.seed(base_url="http://127.0.0.1:9/hotel", required=False)
        asked = await w.activate()
        closed = await w.close()
    assert (refused.status_code, "'hotel.tools' cannot be used" in refused.text) == (422, True)
    assert left_out.status_code == 200
    # Without the grant the functions of the request have nobody to call.
    assert (asked.status_code, "`tools` must be empty" in asked.text) == (422, True)
    assert next(gap["code"] for gap in closed["agent_observations"]["gaps"]) == "tool_grant_unreachable"


MALFORMED = ['{"room": "1', "[]", "null", '{"room": 12}', "x" * 100_000]


@full
@pytest.mark.parametrize("harness", ["pi", "codex"])
async def test_malformed_arguments_are_recorded_as_they_are_and_never_run_as_none(world, harness):
    replies = [*(calls(("book", text)) for text in MALFORMED), calls(("basket", {})), SAID]
    async with world(harness, replies) as w:
        await w.seed()
        ran = await w.activate()
        closed = await w.close()
    assert ran.status_code == 200, ran.text
    made = [item for item in ran.json()["output"] if item["type"] == "function_call"]
    assert [item["arguments"] for item in made[:-1]] == MALFORMED
    assert len(outputs(ran.json())) == len(made)
    assert all(set(body) == {"room"} for tool, body in w.hotel.seen if tool == "book")
    tools = [r for r in closed["agent_observations"]["records"] if r["kind"] == "tool_call"]
    assert [tool["status"] for tool in tools] == [*["failed"] * 3, "completed", "failed", "completed"]


@full
async def test_a_restarted_server_still_has_the_jar(world):
    async with world("codex", [calls(("book", {"room": "12"})), SAID]) as w:
        await w.seed()
        ran = await w.activate()
    assert ran.status_code == 200, ran.text
    async with world("codex", []) as w:
        closed = await w.close()
        kept = w.kept()
    assert w.hotel.basket(closed["resources_cookies"]) == ["12"]
    async with world("codex", []) as w:
        assert await w.close() == closed
        kept += w.kept()
    assert closed["resources_cookies"]["stay"].encode() not in kept
