"""The plugins of this repository keep the rules that `inspan_runtime.testing.harness_checks` spells out."""

from __future__ import annotations

import pytest

import inspan_echo
from inspan_runtime.install_cache import RuntimeCache
from inspan_runtime.testing.harness_checks import HARNESS_CHECKS, HarnessCase, json_call

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checks")
    return HarnessCase(
        plugin=inspan_echo,
        folder=folder,
        shell_call=json_call("bash", "command"),
        cache=RuntimeCache(folder / "cache", client_env={}),
        deadline_s=2.0,
    )


@pytest.mark.parametrize("check", HARNESS_CHECKS, ids=lambda check: check.__name__)
async def test_echo_keeps_the_rule(case, check):
    await check(case)


def test_every_check_says_its_rule():
    assert len({check.__name__ for check in HARNESS_CHECKS}) == len(HARNESS_CHECKS)
    for check in HARNESS_CHECKS:
        assert (check.__doc__ or "").endswith("."), check.__name__
