"""What holds for the repository as a whole."""

import ast
import re
import tomllib

import pytest

import inspan_core.hookspecs as hookspecs
from inspan_core.relay import HARNESS_HOOKS

LINE_LIMIT = 400
TEST_LINE_LIMIT = 500  # A list of stories is read one by one.
FUNCTION_LIMIT = 60
LONGER_FILES = {
    # One file has to travel into the sandbox and be read there alone.
    "supervisor/src/inspan_supervisor/process_supervisor.py": 600,
}
# Put together here, so that this file is not its own finding.
REGISTRIES = ("pypi." + "org", "registry.npmjs." + "org", "pythonhosted" + ".")
MACHINE_PATHS = r"(?<![\w.*<])/(?:home|Users)/[a-z]\w+/|/wo" + r"rk/(?:main|shared)\b"
FORBIDDEN = {
    "a package registry": re.compile("|".join(map(re.escape, REGISTRIES))),
    "a path of somebody's machine": re.compile(MACHINE_PATHS),
    "a conflict marker": re.compile(r"^(?:<{7}|>{7}) ", re.MULTILINE),
}
BINARY = {".tar", ".gz", ".whl", ".png", ".zst"}


def findings(text):
    return sorted(what for what, pattern in FORBIDDEN.items() if pattern.search(text))


def test_nothing_names_a_registry_or_a_machine(tracked, root):
    found = {
        path.relative_to(root).as_posix(): findings(path.read_text(encoding="utf-8"))
        for path in tracked
        if path.suffix not in BINARY
    }
    assert len(found) > 50
    assert {name: what for name, what in found.items() if what} == {}


@pytest.mark.parametrize(
    "text", ["https://pypi" + ".org/simple", "/home" + "/ann/x", "/wo" + "rk/main", "a\n" + "<" * 7 + " HEAD"]
)
def test_a_forbidden_word_is_seen(text):
    assert len(findings(text)) == 1


def test_no_file_is_longer_than_one_reads(tracked, root):
    long = {}
    for path in tracked:
        name = path.relative_to(root).as_posix()
        if path.suffix == ".py":
            lines = path.read_bytes().count(b"\n")
            limit = TEST_LINE_LIMIT if path.name.startswith("test_") else LINE_LIMIT
            if lines > LONGER_FILES.get(name, limit):
                long[name] = lines
    assert long == {}


def test_no_function_is_longer_than_a_screen(modules):
    long = {
        f"{dotted}.{node.name}": node.end_lineno - node.lineno + 1
        for dotted, tree in modules.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if node.end_lineno - node.lineno + 1 > FUNCTION_LIMIT
    }
    assert long == {}


def test_every_module_says_what_it_is(modules):
    silent = [
        name
        for name, (_, tree) in modules.items()
        if ast.get_docstring(tree) is None and (tree.body or not name.endswith("__init__.py"))
    ]
    assert silent == []


def test_all_distributions_share_one_version_and_pin_each_other(projects):
    tables = [tomllib.loads(path.read_text())["project"] for path in projects]
    names = {table["name"] for table in tables}
    assert names >= {
        "inspan-core",
        "inspan-supervisor",
        "inspan-server",
        "inspan-echo",
        "inspan-pi",
        "inspan-codex",
    }
    (version,) = {table["version"] for table in tables}
    for table in tables:
        for requirement in requirements_of(table):
            name = re.match(r"[A-Za-z0-9_-]+", requirement)[0]
            if name in names:
                assert requirement.endswith(f"=={version}"), (table["name"], requirement)


def requirements_of(table):
    extras = table.get("optional-dependencies", {}).values()
    return [*table["dependencies"], *(requirement for extra in extras for requirement in extra)]


def test_a_plugin_depends_on_the_core_only(projects):
    for path in projects:
        if path.parent.parent.name == "plugins":
            table = tomllib.loads(path.read_text())["project"]
            ours = [name for name in table["dependencies"] if name.startswith("inspan")]
            assert [name.partition("==")[0] for name in ours] == ["inspan-core"], path
            assert len(table["entry-points"]["inspan"]) == 1


def test_every_distribution_is_typed_and_described(projects):
    for path in projects:
        table = tomllib.loads(path.read_text())
        assert (path.parent / table["project"]["readme"]).read_text().startswith("# "), path
        for package in table["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]:
            assert (path.parent / package / "py.typed").is_file(), package


def hooks():
    return {name: value for name, value in vars(hookspecs).items() if name.startswith("inspan_")}


@pytest.mark.parametrize("name", sorted(hooks()))
def test_every_hook_is_typed_documented_and_used(name, tracked, root):
    hook = hooks()[name]
    assert hook.__doc__
    assert set(hook.__annotations__) == {*hook.__code__.co_varnames[: hook.__code__.co_argcount], "return"}
    implemented = re.compile(rf"^ *(?:async )?def {name}\(", re.MULTILINE)
    users = [path for path in tracked if path.suffix == ".py" and path.name != "hookspecs.py"]
    assert any(implemented.search(path.read_text()) for path in users)
    tested = [path for path in users if path.name.startswith("test_")]
    assert any(name in path.read_text() for path in tested if path.parent != root / "tests" / "contract")


def test_the_template_walks_through_every_hook_of_a_harness(root):
    readme = (root / "plugins" / "echo" / "README.md").read_text()
    for name in ("inspan_harness", *HARNESS_HOOKS):
        assert f"`{name}(" in readme
