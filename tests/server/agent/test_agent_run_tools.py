"""``/run`` with a real harness whose tools are the Resources Server's functions."""

import json

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from inspan_core.plugins import load_plugins
from inspan_runtime.providers import builtin
from inspan_server.model.capture import Capture
from inspan_server.model.gateway import create_gateway
from inspan_server.model.script import parse_script
from inspan_server.serving import served

pytestmark = [pytest.mark.anyio, pytest.mark.registry]
TOOL = {
    "type": "function",
    "name": "look_up",
    "description": "Looks something up.",
    "parameters": {"type": "object", "properties": {"word": {"type": "string"}}},
}
SCRIPT = {
    "*": [{"tool_calls": [{"name": "look_up", "arguments": {"word": "seed"}}]}, {"content": "found it"}],
}


async def test_functions_are_called_with_the_episodes_cookies_and_verified_with_what_they_change(
    agent, tmp_path
):
    calls = []

    async def answer(request):
        name = request.path_params["name"]
        calls.append((name, json.loads(await request.body() or b"null"), dict(request.cookies)))
        if name == "look_up":
            changed = JSONResponse({"meaning": ["what grows"]})
            changed.set_cookie("step", "two")
            return changed
        made = JSONResponse({"reward": 1} if name == "verify" else {})
        if name == "seed_session":
            made.set_cookie("step", "one")
        return made

    resources = Starlette(routes=[Route("/{name}", answer, methods=["POST", "HEAD"])])
    gateway = create_gateway(parse_script(SCRIPT), Capture())
    async with served(gateway, graceful_timeout_s=1) as model, served(resources, graceful_timeout_s=1) as url:
        changes = {
            "harness": "pi",
            "harness_options": {},
            "model_server": {"base_url": model},
            "host_execution": True,
            "resources_server": {"base_url": url},
            "state_dir": str(tmp_path / "state"),
            "runtime_cache_dir": None,
        }
        async with agent(plugins=load_plugins([builtin]), **changes) as server:
            body = {"responses_create_params": {"input": "look up seed", "tools": [TOOL]}}
            graded = await server.client.post("/run", json=body)
    assert (graded.status_code, graded.json()) == (200, {"reward": 1}), graded.text
    told = {name: (sent, cookies) for name, sent, cookies in calls}
    assert told["look_up"] == ({"word": "seed"}, {"step": "one"})
    assert told["verify"][1] == told["close_session"][1] == {"step": "two"}
    output = next(
        item for item in told["verify"][0]["response"]["output"] if item["type"] == "function_call_output"
    )
    assert "what grows" in output["output"]
