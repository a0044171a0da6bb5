"""docs/plugins.md names each hook with its exact signature, each context member, each check and each verb."""

from __future__ import annotations

import inspect
import re

import attrs
import pytest

import inspan_core.harness as harness
import inspan_core.hookspecs as hookspecs
from inspan_core.plugins import load_plugins
from inspan_core.relay import HARNESS_HOOKS
from inspan_runtime.testing.harness_checks import HARNESS_CHECKS
from inspan_server.cli.parser import build_parser

PLUGINS = ("pi", "codex", "hermes", "echo")
HOOKS = [name for name in vars(hookspecs) if name.startswith("inspan_")]


@pytest.fixture(scope="module")
def page(root):
    return (root / "docs" / "plugins.md").read_text()


@pytest.mark.parametrize("name", HOOKS)
def test_each_hook_has_a_heading_with_its_exact_signature(page, name):
    signature = str(inspect.signature(getattr(hookspecs, name))).replace("'", "")
    assert f"### `{name}{signature}`" in page.splitlines()


def test_no_hook_is_told_of_that_does_not_exist(page):
    assert set(re.findall(r"\binspan_[a-z_]+(?=\()", page)) == set(HOOKS)
    assert HOOKS[1:5] == list(HARNESS_HOOKS)


@pytest.mark.parametrize("context", ["HarnessContext", "ActivationContext", "CollectContext"])
def test_each_member_of_a_context_is_told(page, context):
    told = page.partition("## The contexts")[2].partition("## The five levels")[0]
    members = {name for name in vars(getattr(harness, context)) if not name.startswith("_")}
    assert members
    missing = {name for name in members if not re.search(rf"`{name}[`(]", told)}
    assert missing == set()


def test_each_field_of_the_declaration_is_told(page):
    told = page.partition("### `inspan_harness")[2].partition("### `inspan_install")[0]
    assert {each.name for each in attrs.fields(harness.HarnessSpec) if f"`{each.name}`" not in told} == set()


def test_each_check_is_told_with_its_rule(page):
    told = page.partition("<!-- checks: begin -->")[2].partition("<!-- checks: end -->")[0]
    rows = [f"| `{check.__name__}` | {check.__doc__} |" for check in HARNESS_CHECKS]
    assert told.split("\n") == ["", "| check | rule |", "| --- | --- |", *rows, ""]


def test_each_verb_is_told(page):
    (verbs,) = [each for each in build_parser()._actions if each.dest == "verb"]
    (actions,) = [each for each in verbs.choices["harness"]._actions if each.dest == "action"]
    told = set(re.findall(r"^    inspan harness (\w+)", page.partition("## On a machine")[2], re.MULTILINE))
    assert told == set(actions.choices)


def test_its_links_lead_somewhere(page, root):
    links = re.findall(r"\]\(([^)#]+)\)", page)
    assert links
    assert [link for link in links if not (root / "docs" / link).is_file()] == []


@pytest.fixture(scope="module")
def readmes(root):
    return {name: (root / "plugins" / name / "README.md").read_text() for name in PLUGINS}


def words(text):
    """What stands in code marks, word by word."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    return {word for code in re.findall(r"`([^`]+)`", text) for word in re.findall(r"[A-Za-z0-9_]+", code)}


@pytest.mark.parametrize("name", PLUGINS)
def test_each_option_and_request_field_is_in_the_plugins_readme(readmes, name):
    spec = load_plugins().harness(name).spec
    assert {*spec.options, *spec.request_fields} - words(readmes[name]) == set()


@pytest.mark.parametrize("name", PLUGINS)
def test_each_gap_of_a_plugin_is_in_its_readme(root, readmes, name):
    sources = [path.read_text() for path in (root / "plugins" / name / "src").rglob("*.py")]
    found = {code for source in sources for code in re.findall(r"""gap\(\s*"(\w+)"|code="(\w+)\"""", source)}
    codes = {code for pair in found for code in pair if code}
    assert len(codes) >= 4
    assert codes - words(readmes[name]) == set()
