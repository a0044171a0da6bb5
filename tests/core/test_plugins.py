"""Plugins are found, checked one by one, and relayed to; installed ones are real distributions."""

import re
import sys
import textwrap
from types import SimpleNamespace

import anyio
import pytest

from inspan_core.errors import PluginError
from inspan_core.findings import Outcome
from inspan_core.harness import (
    Artifacts,
    HarnessSpec,
    ParsedActivation,
    ParseInput,
    SandboxCommand,
)
from inspan_core.hookspecs import hookimpl
from inspan_core.observations import AgentObservationBundle
from inspan_core.plugins import load_plugins

FIELDS = {"input": "applied", "metadata": "ignored"}


class HarnessPlugin:
    """A whole harness plugin in one object; its hooks say what they were called with."""

    def __init__(self, name="toy", **spec):
        self.__name__ = f"inspan-{name}"
        self.spec = {"name": name, "version": "1", "level": 2, "request_fields": FIELDS, **spec}

    @hookimpl
    def inspan_harness(self):
        return HarnessSpec(model_api="chat_completions", **self.spec)

    @hookimpl
    def inspan_install(self, context):
        async def install():
            return {"prefix": context.session_dir}

        return install()

    @hookimpl
    async def inspan_stage(self, context):
        return SandboxCommand(argv=[context.session_dir], python="/usr/bin/python3")

    @hookimpl
    async def inspan_collect(self, context):
        context.collected.append(self.spec["name"])

    @hookimpl
    def inspan_parse(self, run):
        observations = AgentObservationBundle(source=self.spec["name"])
        return ParsedActivation(outcome=Outcome.COMPLETED, response={}, observations=observations)


CONTEXT = SimpleNamespace(session_dir="/s", collected=[])
RUN = ParseInput(
    artifacts=Artifacts(), request={}, return_code=0, timed_out=False, interrupted=False, model_name="m"
)


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Install distributions, each one module and its metadata, into a folder that is searched first."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)

    def install(distribution, source, *, entry="x"):
        module = distribution.replace("-", "_")
        (tmp_path / f"{module}.py").write_text(textwrap.dedent(source))
        info = tmp_path / f"{module}-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1\n")
        (info / "entry_points.txt").write_text(f"[inspan]\n{entry} = {module}\n")

    yield install
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_each_hook_reaches_the_one_harness_that_was_chosen():
    plugins = load_plugins([HarnessPlugin("toy"), HarnessPlugin("other")], entry_points=False)
    assert (plugins.problems, plugins.harness_names()) == ((), ("other", "toy"))
    toy = plugins.harness("toy")

    async def run():
        assert await toy.install(CONTEXT) == {"prefix": "/s"}
        assert await toy.stage(CONTEXT) == SandboxCommand(argv=["/s"], python="/usr/bin/python3")
        await toy.collect(CONTEXT)

    CONTEXT.collected.clear()
    anyio.run(run)
    assert CONTEXT.collected == ["toy"]
    assert (toy.parse(RUN).observations.source, toy.spec.name) == ("toy", "toy")


def test_a_wrapper_of_any_plugin_wraps_the_awaitable():
    class Redaction:
        @hookimpl(wrapper=True)
        def inspan_install(self, context):
            inner = yield

            async def install():
                return {**await inner, "redacted": True}

            return install()

    plugins = load_plugins([HarnessPlugin(), Redaction()], entry_points=False)
    assert anyio.run(plugins.harness("toy").install, CONTEXT) == {"prefix": "/s", "redacted": True}


def test_a_broken_plugin_is_reported_by_distribution_and_hides_no_other(installed):
    installed("inspan-syntax", "def (")
    installed("inspan-missing", "import no_such_module_anywhere")
    installed("inspan-exits", "raise SystemExit('I leave')")
    installed(
        "inspan-misspelt",
        """
        from inspan_core.hookspecs import hookimpl

        @hookimpl
        def inspan_harnes():
            return None
        """,
    )
    installed(
        "inspan-good",
        """
        from inspan_core.hookspecs import hookimpl

        @hookimpl
        def inspan_sandbox_providers():
            return {"cloud": dict}
        """,
    )
    plugins = load_plugins([HarnessPlugin()])
    broken = {problem.distribution: problem.message for problem in plugins.problems}
    assert set(broken) == {"inspan-syntax", "inspan-missing", "inspan-exits", "inspan-misspelt"}
    assert "no_such_module_anywhere" in broken["inspan-missing"]
    assert "inspan_harnes" in broken["inspan-misspelt"]
    assert "I leave" in broken["inspan-exits"]
    assert plugins.provider_factory("cloud") is dict
    assert "toy" in plugins.harness_names()
    with pytest.raises(PluginError, match=r"no harness is called 'nope'.*toy.*broken: .*inspan-missing"):
        plugins.harness("nope")


def test_the_installed_echo_plugin_is_found_under_its_distribution():
    plugins = load_plugins()
    assert plugins.harness("echo").distribution == "inspan-echo"


def test_two_plugins_that_claim_one_harness_are_both_named():
    first, second = HarnessPlugin(), HarnessPlugin()
    second.__name__ = "inspan-toy-too"
    plugins = load_plugins([first, second, HarnessPlugin("other")], entry_points=False)
    assert plugins.harness_names() == ("other",)
    with pytest.raises(PluginError, match="inspan-toy and by inspan-toy-too"):
        plugins.harness("toy")


def test_two_plugins_that_claim_one_provider_are_both_named():
    class Provider:
        def __init__(self, name):
            self.__name__ = name

        @hookimpl
        def inspan_sandbox_providers(self):
            return {"cloud": dict, self.__name__: dict}

    plugins = load_plugins([Provider("a"), Provider("b")], entry_points=False)
    assert set(plugins.provider_factories()) == {"a", "b"}
    with pytest.raises(PluginError, match="a and by b"):
        plugins.provider_factory("cloud")
    with pytest.raises(PluginError, match=r"no sandbox provider is called 'nope' \(installed: a, b"):
        plugins.provider_factory("nope")


def test_one_plugin_given_twice_is_one():
    plugin = HarnessPlugin()
    assert load_plugins([plugin, plugin], entry_points=False).harness("toy").spec.name == "toy"


def without_hook(hook):
    plugin = HarnessPlugin()
    setattr(plugin, hook, None)
    return plugin


def with_unmarked_hook():
    plugin = HarnessPlugin()
    plugin.inspan_observe = lambda transition: None
    return plugin


class StrayHook:
    @hookimpl
    def inspan_parse(self, run):
        return None


class WrongArgument:
    @hookimpl
    def inspan_observe(self, change):
        return None


@pytest.mark.parametrize(
    ("plugin", "message"),
    [
        (without_hook("inspan_stage"), "does not implement inspan_stage"),
        (with_unmarked_hook(), "inspan_observe lacks @hookimpl"),
        (StrayHook(), "inspan_parse without inspan_harness"),
        (WrongArgument(), "change"),
        (HarnessPlugin("Toy"), "name is 'Toy'"),
        (HarnessPlugin(level=6), "level is 6"),
        (HarnessPlugin(request_fields={"input": "applied"}), "does not list metadata"),
        (
            HarnessPlugin(request_fields={**FIELDS, "temprature": "applied"}),
            "is no field of a Responses request; did you mean temperature",
        ),
        (
            HarnessPlugin(request_fields={**FIELDS, "user": "dropped"}),
            r"request_fields\['user'\] is 'dropped'",
        ),
    ],
)
def test_a_plugin_that_does_not_hold_together_is_a_problem(plugin, message):
    plugins = load_plugins([plugin], entry_points=False)
    assert plugins.harness_names() == ()
    (problem,) = plugins.problems
    assert re.search(message, str(problem))


def test_a_hook_that_returns_the_wrong_thing_is_named():
    class Wrong(HarnessPlugin):
        @hookimpl
        def inspan_install(self, context):
            return {"not": "awaitable"}

        @hookimpl
        async def inspan_stage(self, context):
            return ["argv"]

        @hookimpl
        def inspan_parse(self, run):
            return None

    harness = load_plugins([Wrong()], entry_points=False).harness("toy")
    with pytest.raises(PluginError, match="inspan-toy: inspan_install returned dict, expected an awaitable"):
        anyio.run(harness.install, CONTEXT)
    with pytest.raises(PluginError, match="inspan_stage gave list, expected a SandboxCommand"):
        anyio.run(harness.stage, CONTEXT)
    with pytest.raises(PluginError, match="inspan_parse gave NoneType"):
        harness.parse(RUN)


def test_a_failing_observer_stops_no_other():
    seen = []

    class Failing:
        @hookimpl
        def inspan_observe(self, transition):
            raise ValueError("bad day")

    class Seeing:
        @hookimpl
        def inspan_observe(self, transition):
            seen.append(transition["phase"])

    plugins = load_plugins([Failing(), Seeing(), Failing()], entry_points=False)
    failures = plugins.observe({"phase": "READY"})
    assert seen == ["READY"]
    assert [str(each) for each in failures] == ["Failing: inspan_observe failed: ValueError: bad day"] * 2
