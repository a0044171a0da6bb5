"""The plugins of this repository keep the rules that `inspan_runtime.testing.harness_checks` spells out."""

from __future__ import annotations

from functools import cache

import pytest

import inspan_echo
from inspan_runtime.install_cache import RuntimeCache
from inspan_runtime.testing.harness_checks import HARNESS_CHECKS, HarnessCase, json_call

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    @cache
    def case_in(sandbox):
        folder = tmp_path_factory.mktemp(sandbox)
        return HarnessCase(
            plugin=inspan_echo,
            folder=folder,
            sandbox=sandbox,
            shell_call=json_call("bash", "command"),
            cache=RuntimeCache(folder / "cache", client_env={}),
            deadline_s=2.0,
        )

    return case_in


QUICK = {"the_caller_is_supervised", "the_task_is_left_alone", "a_deadline_ends_its_tools"}
"""Of those in an isolated sandbox: who is who, what lies where, who lives."""


def cells():
    for check in HARNESS_CHECKS:
        yield pytest.param(check, "local", id=check.__name__)
        marks = [pytest.mark.sandbox, *([] if check.__name__ in QUICK else [pytest.mark.full])]
        yield pytest.param(check, "bubblewrap", id=f"bubblewrap-{check.__name__}", marks=marks)


@pytest.mark.parametrize(("check", "sandbox"), [*cells()])
async def test_echo_keeps_the_rule(cases, check, sandbox):
    await check(cases(sandbox))


@pytest.mark.sandbox
async def test_the_sandbox_is_of_the_kind_that_was_asked_for(cases):
    for kind, isolation in (("local", "none"), ("bubblewrap", "namespaces")):
        async with cases(kind).episode() as episode:
            assert episode.sandbox.descriptor["isolation"] == isolation


def test_every_check_says_its_rule():
    assert len({check.__name__ for check in HARNESS_CHECKS}) == len(HARNESS_CHECKS)
    for check in HARNESS_CHECKS:
        assert (check.__doc__ or "").endswith("."), check.__name__
