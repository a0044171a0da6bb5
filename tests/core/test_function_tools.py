"""The functions of a request as tools of a grant, and the jar that a run leaves."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inspan_core import tool_bridge
from inspan_core.errors import ArtifactError, RequestRefused
from inspan_core.function_tools import (
    COOKIES_LIMIT,
    JAR,
    READY,
    bridge_order,
    changed_cookies,
    direct_http_grant,
    missing_tools,
    read_functions,
)
from inspan_core.harness import Artifacts, HarnessSpec
from inspan_core.wire import DirectHttpAccess, McpAccess, McpConnection

SPEC = HarnessSpec(
    name="some",
    version="1",
    model_api="responses",
    level=3,
    request_fields={"input": "applied", "metadata": "applied"},
    builtin_tools=frozenset({"bash"}),
)
GRANT = DirectHttpAccess(name="g", base_url="http://h/x", headers={"a": "b"}, cookies={"c": "d"})
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def test_functions_become_tools_with_their_schema():
    given_ = [
        {"type": "function", "name": "a", "description": "A.", "parameters": SCHEMA, "strict": True},
        {"type": "function", "name": "b-2_C", "parameters": None},
    ]
    first, second = read_functions({"tools": given_}, SPEC, GRANT)
    assert first.to_json() == {"name": "a", "description": "A.", "parameters": SCHEMA}
    assert second.to_json() == {
        "name": "b-2_C",
        "description": "",
        "parameters": {"type": "object", "properties": {}},
    }
    assert read_functions({}, SPEC, None) == read_functions({"tools": None}, SPEC, GRANT) == ()


@pytest.mark.parametrize(
    ("tools", "words"),
    [
        ("bash", "must be a list"),
        ([{"type": "web_search"}], "'web_search'; some takes functions only"),
        (["x"], "of type 'str'"),
        ([{"type": "function"}], "expected 1 to 64"),
        ([{"type": "function", "name": "a.b"}], "'a.b'"),
        ([{"type": "function", "name": "a" * 65}], "1 to 64"),
        ([{"type": "function", "name": "bash"}], "built-in tool of some"),
        ([{"type": "function", "name": "mine"}], "built-in tool of some"),
        ([{"type": "function", "name": "a"}] * 2, "two functions named 'a'"),
        ([{"type": "function", "name": "a", "description": 5}], "description"),
        ([{"type": "function", "name": "a", "parameters": []}], "JSON Schema of an object"),
        ([{"type": "function", "name": "a", "parameters": {"type": "string"}}], "JSON Schema of an object"),
    ],
)
def test_what_cannot_be_a_tool_is_refused(tools, words):
    with pytest.raises(RequestRefused, match="tools") as refused:
        read_functions({"tools": tools}, SPEC, GRANT, taken={"mine"})
    assert words in str(refused.value)
    assert refused.value.field == "tools"


def test_without_a_grant_nobody_could_be_called():
    mcp = McpAccess(name="m", connection=McpConnection(url="http://h"))
    assert (direct_http_grant([mcp]), direct_http_grant([mcp, GRANT])) == (None, GRANT)
    with pytest.raises(RequestRefused, match="has none: `tools` must be empty"):
        read_functions({"tools": [{"type": "function", "name": "a"}]}, SPEC, None)


def test_the_bridge_is_ordered_with_all_that_it_takes(tmp_path):
    functions = read_functions({"tools": [{"type": "function", "name": "a"}]}, SPEC, GRANT)
    order = bridge_order(GRANT, functions, token="t", url_mark="@", timeout_s=9.0, fetched_is_ready=False)
    bridge = tool_bridge.ToolBridge(json.loads(json.dumps(order)), str(tmp_path))
    bridge.listener.server_close()
    assert bridge.names == ["a"]
    assert (tool_bridge.JAR, tool_bridge.READY) == (JAR, READY)
    assert {"a": "b"} == order["headers"] and {"c": "d"} == order["cookies"]


def ready(value):
    return Artifacts(files={READY: value if isinstance(value, bytes) else json.dumps(value).encode()})


WANTED = {"tools": [{"type": "function", "name": "a"}, {"type": "function", "name": "b"}]}


def test_a_harness_had_its_tools_if_it_says_so_of_all():
    assert missing_tools(ready({"tools": ["b", "a"]}), WANTED) is None
    assert missing_tools(Artifacts(), {"tools": []}) is None
    assert missing_tools(Artifacts(), {}) is None
    for artifacts in (
        Artifacts(),
        ready(b"{"),
        ready([]),
        ready({"tools": None}),
        ready({"tools": ["a"]}),
        ready({"tools": ["a", "b", "c"]}),
    ):
        assert "tools" in missing_tools(artifacts, WANTED)


def jar(value):
    return json.dumps(value).encode()


def test_the_jar_is_the_whole_jar_or_nothing():
    before = {"a": "1", "b": "2"}
    assert changed_cookies(before, jar({"cookies": None})) is None
    assert changed_cookies(before, jar({"cookies": {"b": "2", "a": "1"}})) is None
    assert changed_cookies(before, jar({"cookies": {"a": "1"}})) == {"a": "1"}
    assert changed_cookies({}, jar({"cookies": {"s": "x=y/z;q"}})) == {"s": "x=y/z;q"}
    many = {str(number): "" for number in range(COOKIES_LIMIT + 1)}
    for bad in (
        b"",
        b"[" * 100_000,
        jar([]),
        jar({}),
        jar({"cookies": None, "more": 1}),
        jar({"cookies": []}),
        jar({"cookies": {"a": 1}}),
        jar({"cookies": {"a\r\nset-cookie": "x"}}),
        jar({"cookies": {"a": "x\r\ny"}}),
        jar({"cookies": {"": "x"}}),
        jar({"cookies": many}),
    ):
        with pytest.raises(ArtifactError, match=JAR):
            changed_cookies(before, bad)


@settings(max_examples=60)
@given(st.binary() | st.recursive(st.none() | st.text() | st.integers(), st.lists).map(jar))
def test_whatever_a_sandbox_writes_is_a_jar_or_an_error(data):
    try:
        found = changed_cookies({"a": "1"}, data)
    except ArtifactError:
        return
    assert found is None or all(isinstance(value, str) for value in found.values())
