"""The example of a wrapper: it redacts what any harness answers, and the harness keeps its rules with it."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

import inspan_echo
from inspan_core.errors import ConfigError
from inspan_core.harness import SandboxCommand
from inspan_core.plugins import load_plugins
from inspan_runtime.install_cache import RuntimeCache
from inspan_runtime.testing.harness_checks import HARNESS_CHECKS, HarnessCase, json_call
from inspan_runtime.testing.scripted_model import Reply

pytestmark = pytest.mark.anyio

EXAMPLE = Path(__file__).parents[2] / "examples" / "redact_secrets.py"
# Put together here, so that this file holds nothing that scanners of repositories look for.
SECRETS = (
    "AKIA" + "Q" * 16,
    "ghp_" + "x" * 36,
    "-----BEGIN RSA PRIVATE" + " KEY-----\nabc\n-----END RSA PRIVATE KEY-----",
)


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("redact_secrets", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def case(example, tmp_path):
    return HarnessCase(
        plugin=inspan_echo,
        wrappers=[example],
        folder=tmp_path,
        shell_call=json_call("bash", "command"),
        cache=RuntimeCache(tmp_path / "cache", client_env={}),
        deadline_s=1.0,
    )


def test_it_is_a_plugin_without_a_harness(example):
    plugins = load_plugins([example], entry_points=False)
    assert (plugins.problems, plugins.harness_names()) == ((), ())


@pytest.mark.parametrize("secret", SECRETS)
async def test_a_secret_leaves_neither_in_the_response_nor_in_the_observations(case, secret):
    show = json.dumps({"command": f"printf '%s' '{secret}'"})
    async with case.episode(Reply(calls=[("c1", "bash", show)]), Reply(text=f"It is {secret}.")) as episode:
        run = await episode.run()
    told = json.dumps(run.parsed.response) + repr(run.parsed.observations)
    assert secret not in told
    assert json.dumps(secret)[1:-1] not in told
    assert "It is [redacted]." in told
    assert "secret_redacted" in [gap.code for gap in run.parsed.observations.gaps]


async def test_what_holds_no_secret_is_not_touched(case):
    run = await case.whole_run()
    assert run.parsed == inspan_echo.inspan_parse(run=run.parse_input)


async def test_staging_that_shows_a_secret_is_refused(example):
    async def staged():
        return SandboxCommand(argv=["/bin/sh", "-c", SECRETS[0]], python="/usr/bin/python3")

    with pytest.raises(ConfigError, match="looks like a secret"):
        await example._checked(staged())


@pytest.mark.parametrize("check", HARNESS_CHECKS[:4], ids=lambda check: check.__name__)
async def test_the_harness_keeps_its_rules_under_the_wrapper(case, check):
    await check(case)
