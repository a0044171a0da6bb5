"""The configuration: what is taken, and what an error names."""

import math
from pathlib import Path

import pytest

import inspan_echo
from inspan_core.errors import ConfigError, PluginError
from inspan_core.hookspecs import hookimpl
from inspan_core.plugins import load_plugins
from inspan_core.wire import DirectHttpAccess
from inspan_runtime.providers.local import LocalProvider
from inspan_server.agent.config_reading import parse_config, read_config
from inspan_server.agent.wiring import build_service

GRANT = {"kind": "direct_http", "name": "res", "base_url": "http://127.0.0.1:9/"}
LEAST = {"harness": "echo", "model_server": {"base_url": "http://127.0.0.1:9000"}}


class LocalOnly:
    @hookimpl
    def inspan_sandbox_providers(self):
        return {"local": LocalProvider}


PLUGINS = load_plugins([inspan_echo, LocalOnly()], entry_points=False)


def wired(tmp_path, **changes):
    config = parse_config({**LEAST, "runtime_cache_dir": str(tmp_path), **changes})
    return build_service(config, PLUGINS, environ={}).settings


def test_a_file_is_read_with_the_contracts_names_and_defaults(tmp_path):
    path = tmp_path / "agent.yaml"
    path.write_text(
        """
        harness: echo
        model_server: {base_url: "http://127.0.0.1:9000", name: policy, api_key: sk-1}
        concurrency: 3
        timeout: 60
        tool_accesses:
          - {kind: direct_http, name: res, base_url: "http://127.0.0.1:9/"}
        sandbox_provider: box
        sandbox_providers: {box: {kind: local}}
        sandbox_config: {workdir: /app, ttl_s: null}
        """
    )
    config = read_config(path)
    assert (config.concurrency, config.timeout, config.sandbox_config.ttl_s) == (3, 60, None)
    assert config.tool_accesses == (DirectHttpAccess(name="res", base_url="http://127.0.0.1:9/"),)
    assert (config.host, config.num_workers, config.session_close_timeout_seconds) == ("127.0.0.1", 1, 30)
    assert config.sandbox_install_timeout_seconds == 900
    assert config.sandbox_runner_timeout_seconds == 21600
    assert config.session_close_retry_window_seconds == 300
    assert "sk-1" not in repr(config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"concurency": 3}, r"concurency is not a known key; did you mean concurrency\?"),
        ({"model_server": {"base_url": "http://h", "nam": "x"}}, r"model_server\.nam .* did you mean name\?"),
        ({"sandbox_config": {"wordkir": "/x"}}, r"sandbox_config\.wordkir .* did you mean workdir\?"),
        ({"model_server": {"base_url": "ftp://h"}}, r"model_server\.base_url is 'ftp://h', must be an http"),
        ({"num_workers": 2}, "num_workers is 2, must be 1"),
        ({"concurrency": 0}, "concurrency is 0, must be 1 or more"),
        ({"concurrency": "3"}, "concurrency is '3', must be a whole number"),
        ({"session_close_timeout_seconds": 0}, "session_close_timeout_seconds is 0, must be above 0"),
        ({"resources_server": {"base_url": "http://h"}}, "resources_server needs host_execution: true"),
        ({"resources_server": {"base_url": "x"}}, r"resources_server\.base_url is 'x', must be an http"),
        ({"resources_server": {"base_url": "http://h", "timeout_s": 0}}, r"timeout_s is 0, must be above"),
        ({"sandbox_provider": "box"}, r"sandbox_provider is 'box', must name a block of .*\(there: none\)"),
        ({"sandbox_providers": {"box": {}}}, r"sandbox_providers\.box needs 'kind'"),
        ({"session_dir_root": "tmp"}, "session_dir_root is 'tmp', must match"),
        ({"cookie_secret": "too short"}, "cookie_secret must have at least 16 characters"),
        ({"harness": ""}, "harness is '', must have at least 1"),
        ({"timeout": math.inf}, "timeout is inf, must be above 0 and at most 1000000000 seconds"),
        ({"session_close_retry_window_seconds": math.nan}, "window_seconds is nan, must be above 0"),
        ({"sandbox_config": {"ttl_s": -1}}, r"sandbox_config\.ttl_s is -1, must be above 0"),
        ({"sandbox_config": {"ttl_s": math.nan}}, r"sandbox_config\.ttl_s is nan, must be above 0"),
        (
            {"model_server": {"base_url": "http://h", "api_key": "too short\r\nX-Other: header"}},
            r"model_server\.api_key must match",
        ),
        ({"tool_accesses": [GRANT, GRANT]}, "tool_accesses is 'res', must have names that differ"),
    ],
)
def test_an_error_names_the_key_the_value_and_what_was_expected(changes, message):
    with pytest.raises(ConfigError, match=message) as caught:
        parse_config({**LEAST, **changes}, name="agent.yaml")
    assert str(caught.value).startswith("agent.yaml: ")
    assert "too short" not in str(caught.value)


def test_the_example_is_a_configuration():
    config = read_config(Path(__file__).parents[3] / "examples" / "agent.yaml")
    assert (config.harness, config.sandbox_provider) == ("pi", "box")
    assert config.sandbox_providers["box"]["kind"] == "bubblewrap"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"a: [", "is not YAML"),
        (b"!!python/object/apply:os.getcwd []", "is not YAML"),
        (b"\xff\xfe\x00", "is not YAML"),
        (b"", "must be an object"),
        (b"harness: echo", "model_server is required"),
    ],
)
def test_a_file_that_is_no_configuration_is_named(tmp_path, text, message):
    path = tmp_path / "agent.yaml"
    path.write_bytes(text)
    with pytest.raises(ConfigError, match=rf"agent\.yaml.*{message}"):
        read_config(path)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.yaml cannot be read: No such file"):
        read_config(tmp_path / "none.yaml")


def test_an_unknown_harness_lists_what_is_installed(tmp_path):
    with pytest.raises(PluginError, match=r"no harness is called 'nope' \(installed: echo\)"):
        wired(tmp_path, harness="nope")


def test_an_unknown_provider_lists_what_is_installed(tmp_path):
    with pytest.raises(PluginError, match=r"no sandbox provider is called 'cloud' \(installed: local\)"):
        wired(tmp_path, sandbox_providers={"box": {"kind": "cloud"}})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"harness_options": {"max_turn": 3}}, r"harness_options\.max_turn .*did you mean max_turns\?"),
        ({"harness_options": {"colour": 3}}, "harness_options.colour .*it has: model, max_turns"),
        ({"harness_options": {"max_turns": "3"}}, "max_turns is '3', expected a value of type int"),
        ({"harness_options": {"model": 1}}, "model is 1, expected a value of type bool"),
        ({"sandbox_providers": {"box": {"kind": "local", "colour": 1}}}, "colour"),
        ({"token_id_capture": True}, "token_id_capture is true, but harness 'echo' is of level 2"),
    ],
)
def test_what_does_not_fit_harness_or_provider_is_refused(tmp_path, changes, message):
    with pytest.raises(ConfigError, match=message):
        wired(tmp_path, **changes)


def test_the_service_gets_the_budgets_the_options_and_the_sandbox(tmp_path):
    settings = wired(
        tmp_path,
        timeout=7200,
        sandbox_runner_timeout_seconds=3600,
        harness_options={"max_turns": 3},
        sandbox_provider="box",
        sandbox_providers={"box": {"kind": "local"}},
        sandbox_config={"workdir": "/app"},
    )
    assert settings.run_timeout_s == 3600
    assert settings.options == {"model": True, "max_turns": 3, "command_timeout_s": 120}
    assert settings.owned.spec.ttl_s == 900 + 3600 + 600
    assert settings.owned.spec.reach == ("http://127.0.0.1:9000",)
    assert settings.model_key("r1") == "none"


def test_a_model_server_elsewhere_needs_no_way_through_the_loopback(tmp_path):
    settings = wired(
        tmp_path,
        model_server={"base_url": "https://models.example", "api_key": "sk-1"},
        sandbox_provider="box",
        sandbox_providers={"box": {"kind": "local"}},
    )
    assert (settings.owned.spec.reach, settings.model_key("r1")) == ((), "sk-1")
