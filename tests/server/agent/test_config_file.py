"""A configuration file: variables, repeated keys, what is shown, what its times add up to."""

import json
import re

import pytest
import yaml

from inspan_core.errors import ConfigError
from inspan_server.agent.config_reading import read_config
from inspan_server.cli.main import main

LEAST = {"harness": "echo", "model_server": {"base_url": "http://127.0.0.1:9000"}}
SECRETS = {
    "INSPAN_TEST_KEY": "sk-of-the-environment",
    "INSPAN_TEST_COOKIE": "sixteen-characters-and-more",
    "INSPAN_TEST_TOKEN": "token-of-the-environment",
    "INSPAN_TEST_EMPTY": "",
}
SECRET_FIELDS = {
    "model_server": {"base_url": "http://127.0.0.1:9000", "api_key": "${INSPAN_TEST_KEY}"},
    "cookie_secret": "${INSPAN_TEST_COOKIE}",
    "bearer_token": "${INSPAN_TEST_TOKEN}",
    "tls": {"certfile": "/c.pem", "keyfile": "/k.pem", "keyfile_password": "${INSPAN_TEST_KEY}"},
    "tool_accesses": [
        {
            "kind": "direct_http",
            "name": "direct",
            "base_url": "http://127.0.0.1:1",
            "headers": {"authorization": "Bearer ${INSPAN_TEST_TOKEN}"},
            "cookies": {"session": "${INSPAN_TEST_COOKIE}"},
        },
        {
            "kind": "mcp",
            "name": "mcp",
            "connection": {"url": "http://127.0.0.1:1", "headers": {"x": "${INSPAN_TEST_KEY}"}},
        },
    ],
}


@pytest.fixture
def write(tmp_path):
    """Write a configuration: a mapping's keys over the least, or text as it is."""

    def writing(content=None, **changes):
        path = tmp_path / "agent.yaml"
        path.write_text(content if content is not None else yaml.safe_dump({**LEAST, **changes}))
        return path

    return writing


def test_secret_fields_take_variables_and_the_rest_of_their_text(write):
    config = read_config(write(**SECRET_FIELDS), SECRETS)
    assert config.model_server.api_key == SECRETS["INSPAN_TEST_KEY"]
    assert config.cookie_secret == SECRETS["INSPAN_TEST_COOKIE"]
    assert config.bearer_token == SECRETS["INSPAN_TEST_TOKEN"]
    assert config.tls.keyfile_password == SECRETS["INSPAN_TEST_KEY"]
    direct, mcp = config.tool_accesses
    assert direct.headers == {"authorization": "Bearer token-of-the-environment"}
    assert direct.cookies == {"session": SECRETS["INSPAN_TEST_COOKIE"]}
    assert mcp.connection.headers == {"x": SECRETS["INSPAN_TEST_KEY"]}
    assert not any(secret in repr(config) for secret in SECRETS.values() if secret)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("${INSPAN_TEST_NONE}", "model_server.api_key needs the environment variable INSPAN_TEST_NONE"),
        ("${INSPAN_TEST_EMPTY}", "model_server.api_key needs the environment variable INSPAN_TEST_EMPTY"),
        ("${}", "model_server.api_key holds a ${...} that names no variable"),
        ("${1x}", "model_server.api_key holds a ${...} that names no variable"),
        ("${INSPAN_TEST_KEY", "model_server.api_key holds a ${ without its }"),
    ],
)
def test_a_variable_that_is_not_there_is_named_with_its_field(write, text, message):
    path = write(model_server={"base_url": "http://h", "api_key": text})
    with pytest.raises(ConfigError, match=re.escape(message)):
        read_config(path, SECRETS)


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"harness": "${INSPAN_TEST_KEY}"}, "harness"),
        ({"model_server": {"base_url": "http://${HOST}"}}, "model_server.base_url"),
        ({"sandbox_config": {"env": {"cookies": "${INSPAN_TEST_KEY}"}}}, "sandbox_config.env.cookies"),
        ({"harness_options": {"headers": "${INSPAN_TEST_KEY}"}}, "harness_options.headers"),
        ({"sandbox_providers": {"box": {"kind": "${KIND}"}}}, "sandbox_providers.box.kind"),
    ],
)
def test_a_variable_anywhere_else_is_refused_with_the_reason(write, changes, place):
    with pytest.raises(ConfigError, match=re.escape(place) + " is .*variables are for secret fields only"):
        read_config(write(**changes), SECRETS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("harness: echo\nport: 1\nharness: pi\n", "'harness' is given twice, in line 1 and in line 3"),
        ("model_server: {name: a, base_url: x, name: b}", "'name' is given twice, in line 1 and in line 1"),
        ("sandbox_providers:\n  b: {kind: x}\n  b: {kind: y}\n", "'b' is given twice, in line 2"),
    ],
)
def test_a_key_that_is_given_twice_is_named_with_its_lines(write, text, message):
    with pytest.raises(ConfigError, match=rf"agent\.yaml: the key {message}"):
        read_config(write(text), {})


def test_an_alias_of_itself_is_no_configuration(write):
    with pytest.raises(ConfigError, match="an alias refers to what it stands in"):
        read_config(write("harness: &me [*me]\n"), {})


def test_merged_mappings_may_be_overridden(write):
    text = """
    harness: echo
    model_server: {base_url: "http://h"}
    sandbox_providers:
      one: &one {kind: local, runtime_dir: /a}
      two: {<<: *one, runtime_dir: /b}
    """
    blocks = read_config(write(text), {}).sandbox_providers
    assert (blocks["one"]["runtime_dir"], blocks["two"]["runtime_dir"]) == ("/a", "/b")


def test_a_configuration_is_shown_whole_and_without_its_secrets(write, monkeypatch, capsys):
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    options = {"api_token": "secret-of-a-provider", "kind": "bubblewrap"}
    path = write(**SECRET_FIELDS, sandbox_providers={"box": options}, sandbox_config={"env": {"A_KEY": "s"}})
    assert main(["config", "show", str(path)]) == 0
    printed = capsys.readouterr().out
    assert main(["config", "show", "--json", str(path)]) == 0
    as_json = json.loads(capsys.readouterr().out)
    for text in (printed, json.dumps(as_json)):
        assert not any(secret in text for secret in SECRETS.values() if secret)
        assert "secret-of-a-provider" not in text
    whole = yaml.safe_load(printed)
    assert as_json.pop("budgets")["worst_close_s"] == 5 * 30 + 60
    assert whole == as_json
    assert whole["session_close_retry_window_seconds"] == 300
    assert whole["model_server"]["api_key"] == whole["cookie_secret"] == "***"
    assert whole["tool_accesses"][0]["headers"] == {"authorization": "***"}
    assert whole["sandbox_config"]["env"] == {"A_KEY": "***"}


def checked(path, capsys, *flags):
    code = main(["config", "check", "--json", *flags, str(path)])
    return code, json.loads(capsys.readouterr().out)


def test_a_check_tells_the_budgets_and_what_does_not_fit(write, capsys):
    path = write(
        session_close_timeout_seconds=10,
        sandbox_install_timeout_seconds=100,
        timeout=2000,
        sandbox_runner_timeout_seconds=1000,
        sandbox_provider="box",
        sandbox_providers={"box": {"kind": "local"}},
        sandbox_config={"ttl_s": 600},
        state_dir="/var/lib/inspan",
    )
    code, told = checked(path, capsys)
    assert (code, told["ok"], told["errors"]) == (0, True, [])
    assert told["budgets"] == {
        "close_steps": 5,
        "close_step_s": 10,
        "close_wait_s": 60,
        "worst_close_s": 110,
        "cleanup_timeout_s": 110,
        "episode_timeout_s": 1210,
        "owned_ttl_s": 600,
    }
    said = "\n".join(told["warnings"])
    assert "timeout is 2000, but sandbox_runner_timeout_seconds ends every run after 1000" in said
    assert "ttl_s is 600, but installation, run and close may take 1210" in said
    assert "sandbox_providers.box is of kind local, which isolates nothing" in said
    assert "state_dir" not in said
    assert checked(path, capsys, "--strict")[0] == 2
    assert main(["config", "check", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "worst close: 5 steps x 10 s + 60 s to parse = 110 s" in printed
    assert "cleanup_timeout_seconds of 110 or more" in printed


def test_a_check_without_warnings_passes_strictly(write, capsys):
    path = write(
        sandbox_provider="box",
        sandbox_providers={"box": {"kind": "bubblewrap", "bwrap": "sh"}},  # Any program that is there.
        state_dir="/var/lib/inspan",
    )
    code, told = checked(path, capsys, "--strict")
    assert (code, told["warnings"]) == (0, [])
    assert told["budgets"]["owned_ttl_s"] == 900 + 21600 + 600


def test_a_program_that_a_provider_needs_and_that_is_not_there_is_told(write, capsys):
    blocks = {
        "box": {"kind": "bubblewrap", "bwrap": "bwrap-that-is-not-there"},
        "image": {"kind": "docker", "engine": "engine-that-is-not-there"},
    }
    code, told = checked(write(sandbox_providers=blocks, state_dir="/s"), capsys)
    assert code == 0
    assert [sentence.partition(" was not found")[0] for sentence in told["warnings"]] == [
        "sandbox_providers.box: bwrap-that-is-not-there",
        "sandbox_providers.image: engine-that-is-not-there",
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"harness": "nope"}, "no harness is called 'nope' (installed: "),
        ({"sandbox_providers": {"box": {"kind": "cloud"}}}, "no sandbox provider is called 'cloud'"),
        ({"harness_options": {"max_turns": -5}}, "harness_options: option 'max_turns' of echo is -5"),
        ({"harness": "pi", "harness_options": {"max_retries": -1}}, "'max_retries' of pi is -1"),
        ({"harness": "codex", "harness_options": {"system_prompt": "x"}}, "'system_prompt' of codex is 'x'"),
        ({"host": "0.0.0.0"}, "host 0.0.0.0 is reached from other machines"),
        ({"tls": {"certfile": "/c.pem", "keyfile": "/k.pem"}}, "tls: /c.pem, /k.pem: cannot be used"),
        ({"num_workers": 4}, "num_workers is 4, must be 1: the state of sessions lives in one process"),
        ({"prot": 1}, "prot is not a known key; did you mean port?"),
        ({"port": 65536}, "port is 65536, must be at most 65535"),
        ({"state_dir": "/etc/passwd/x"}, "state_dir: /etc/passwd is not a folder"),
        ({"sandbox_config": {"cpu": float("nan")}}, "sandbox_config.cpu is nan, must be above 0"),
        ({"sandbox_config": {"env": {"A=B": "x"}}}, "'A=B', is not a variable that a process can have"),
        (
            {"sandbox_config": {"workdir": "//"}},
            "sandbox_config.workdir is '//', must be a folder of its own",
        ),
        (
            {"sandbox_config": {"workdir": "/w", "mounts": [{"source": "/a", "target": "/w/./a"}]}},
            "sandbox_config.mounts.0.target is '/w/./a', must be outside of the workdir /w",
        ),
        ({"timeout": "${T}"}, "timeout is '${T}', must not hold ${"),
    ],
)
def test_what_cannot_be_served_is_told_and_fails(write, changes, message, capsys):
    path = write(**changes)
    code, told = checked(path, capsys)
    assert (code, told["ok"]) == (2, False)
    assert message in told["errors"][0]
    assert main(["config", "check", str(path)]) == 2
    assert message in capsys.readouterr().out


def test_everything_that_is_not_installed_is_told_at_once(write, capsys):
    path = write(harness="nope", sandbox_providers={"a": {"kind": "cloud"}, "b": {"kind": "moon"}})
    assert len(checked(path, capsys)[1]["errors"]) == 3


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("2001-99-99", "is not YAML: month must be in 1..12"),
        ("9" * 5000, "is not YAML: Exceeds the limit"),
        ('"\\ud800"', "is not YAML: line 3 has a text with half of a surrogate pair"),
    ],
)
def test_values_that_cannot_be_made_are_told(write, value, message, capsys):
    path = write(f"harness: echo\nmodel_server: {{base_url: 'http://h'}}\nhost: {value}\n")
    code, told = checked(path, capsys)
    assert (code, message in told["errors"][0]) == (2, True), told


def test_grants_that_no_session_could_use_are_warned_of(write, capsys):
    grant = {"kind": "direct_http", "name": "g", "base_url": "http://127.0.0.1:1"}
    code, told = checked(write(tool_accesses=[grant], state_dir="/s"), capsys)
    assert (code, told["warnings"][-1]) == (
        0,
        "every session is refused: tool grant 'g' is direct_http; harness 'echo' can use: builtin",
    )


def test_what_cannot_be_read_is_not_shown(write, capsys):
    assert main(["config", "show", str(write(num_workers=2))]) == 2
    assert "num_workers is 2" in capsys.readouterr().err
