"""`inspan harness`: what it prints, what it exits with, and what it leaves."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from inspan_core.harness import RuntimeKey
from inspan_core.plugins import load_plugins
from inspan_runtime.install_cache import RuntimeCache
from inspan_server.cli.main import main

ACTIONS = ("list", "show", "install", "doctor", "check", "prune", "new")


@pytest.fixture
def inspan(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def run(*arguments):
        try:
            code = main(["harness", *arguments])
        except SystemExit as ended:
            code = ended.code
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


@pytest.mark.parametrize("action", ACTIONS)
def test_every_action_has_help(inspan, action):
    code, out, _ = inspan(action, "--help")
    assert code == 0
    assert "usage: inspan harness " + action in out
    assert "--json" in out


def test_list_names_what_is_installed(inspan):
    code, out, _ = inspan("list")
    assert (code, "broken" in out) == (0, False)
    assert {line.split()[0] for line in out.splitlines()} == set(load_plugins().harness_names())


def test_show_tells_the_whole_declaration(inspan):
    code, out, _ = inspan("show", "echo", "--json")
    told, spec = json.loads(out), load_plugins().harness("echo").spec
    assert code == 0
    assert told["distribution"] == "inspan-echo"
    assert (told["level"], told["level_name"], told["model_api"]) == (2, "sandboxed session", spec.model_api)
    fates = {field: use for use, fields in told["request_fields"].items() for field in fields}
    assert (fates, told["options"]) == (dict(spec.request_fields), dict(spec.options))
    code, page, _ = inspan("show", "echo")
    assert code == 0
    for part in ("level          2, sandboxed session", "max_turns: 50", "every other field (422)"):
        assert part in page


@pytest.mark.parametrize("action", ["show", "install", "check"])
def test_a_harness_that_is_not_there_is_wrong_usage_and_the_others_are_named(inspan, action):
    code, out, err = inspan(action, "nosuch")
    assert (code, out) == (2, "")
    assert "'nosuch'" in err
    assert "echo" in err


def test_install_says_what_it_did(inspan, tmp_path):
    code, out, _ = inspan("install", "echo", "--sandbox", "local")
    assert code == 0
    assert out.splitlines()[0] == f"installing echo 1 into {tmp_path / 'cache' / 'inspan'}"
    assert re.fullmatch(r"echo 1 runs on linux \S+ with glibc \S+; done in \d+\.\d s", out.splitlines()[-1])
    code, out, _ = inspan("install", "echo", "--sandbox", "local", "--json", "--cache-dir", "other")
    told = json.loads(out)
    assert (code, told["cache"]) == (0, str(tmp_path / "other"))
    assert os.access(told["runtime"]["python"], os.X_OK)


def test_install_without_an_image_where_one_is_needed_is_wrong_usage(inspan):
    code, _, err = inspan("install", "echo", "--sandbox", "docker")
    assert (code, "--image" in err) == (2, True)


@pytest.mark.sandbox
def test_doctor_finds_everything_well(inspan):
    code, out, _ = inspan("doctor", "echo")
    marks = [line.split()[:2] for line in out.splitlines()[:-1]]
    assert marks == [["ok", what] for what in ("machine", "plugin", "cache", "sandbox", "runtime")]
    assert (code, out.splitlines()[-1]) == (0, "echo works here")


def findings(out):
    return {each["what"]: each for each in json.loads(out)["findings"]}


def test_doctor_says_how_to_mend_what_is_wrong(inspan, tmp_path):
    (tmp_path / "taken").write_text("a file")
    code, out, _ = inspan("doctor", "pi", "--sandbox", "local", "--json", "--cache-dir", "taken")
    found = findings(out)
    assert (code, found["cache"]["is_well"]) == (1, False)
    assert "--cache-dir" in found["cache"]["fix"]
    code, _, err = inspan("install", "echo", "--sandbox", "local", "--cache-dir", "taken")
    assert (code, "cannot be written" in err) == (3, True)
    code, out, _ = inspan("doctor", "pi", "--sandbox", "local", "--json")
    found = findings(out)
    assert (code, found["cache"]["is_well"], found["runtime"]["is_well"]) == (1, True, False)
    assert "has no archive of pi-" in found["runtime"]["detail"], "nothing is downloaded"
    assert found["runtime"]["fix"] == "inspan harness install pi"
    code, out, _ = inspan("doctor", "nosuch", "--sandbox", "nosuch")
    assert code == 1
    assert out.count("WRONG") == out.count("fix: ") == 2
    assert out.endswith("nosuch does not work here yet\n")


async def _fill(folder):
    Path(folder.path, "program").write_text("one")


def test_doctor_tells_each_damage_and_what_becomes_of_it(inspan, tmp_path):
    cache = RuntimeCache(tmp_path / "mine", client_env={})
    key = RuntimeKey(harness="echo", version="1", os="linux", arch="x86_64", libc="glibc")

    def doctor():
        code, out, _ = inspan("doctor", "echo", "--sandbox", "local", "--json", "--cache-dir", "mine")
        return code, findings(out)

    async def install():
        await cache.unpacked(key, await cache.archive(key, _fill))

    anyio.run(install)
    program, archive = cache.shared.folder / str(key) / "program", next(cache.root.glob("archives/*.tar"))
    assert doctor()[1]["cached"]["detail"] == f"{key}: unpacked, 0 MiB"
    os.utime(program, (1, 1))
    assert "damaged or made by another version: the next seed" in doctor()[1]["cached"]["detail"]
    program.unlink()
    program.symlink_to("nowhere")
    assert "damaged or made by another version: the next seed" in doctor()[1]["cached"]["detail"]
    archive.write_bytes(archive.read_bytes()[:-1])
    code, found = doctor()
    assert (code, "its archive is missing or damaged" in found["cached"]["detail"]) == (0, True)
    shutil.rmtree(cache.root / "locks")
    (cache.root / "locks").write_text("a file")
    code, found = doctor()
    assert (code, found["cache"]["is_well"], "--cache-dir" in found["cache"]["fix"]) == (1, False, True)
    assert found["cache"]["detail"].startswith(str(cache.root / "locks"))


def test_doctor_tells_where_the_program_of_the_provider_is_missing(inspan, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    code, out, _ = inspan("doctor", "echo", "--json")
    assert code == 1
    assert "apt-get install bubblewrap" in findings(out)["sandbox"]["detail"]


def test_check_tells_what_passed_and_what_was_left_out(inspan):
    code, out, _ = inspan(
        "check", "echo", "--sandbox", "local", "--only", "declaration", "--only", "tool_out"
    )
    assert code == 0
    assert out.splitlines() == [
        "passed      declaration is sound",
        "left out    tool output reaches the model: --shell was not given",
        "echo in local: 1 passed, 0 failed, 1 left out or unavailable",
    ]


@pytest.mark.sandbox
def test_check_fails_where_a_rule_is_broken_and_says_in_which_sandbox(inspan):
    """The model calls a tool that the harness has not."""
    code, out, _ = inspan("check", "echo", "--shell", "nosuch:command", "--only", "tool_output", "--json")
    told = json.loads(out)
    assert (code, told["harness"], told["sandbox"]) == (1, "echo", "bubblewrap")
    (check,) = told["checks"]
    assert (check["name"], check["status"]) == ("tool_output_reaches_the_model", "FAILED")
    assert "not sent to the model" in check["message"]


def test_check_of_a_program_that_is_not_there_is_one_error(inspan, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    code, out, err = inspan("check", "echo")
    assert (code, out) == (3, "")
    assert "apt-get install bubblewrap" in err


def test_prune_of_an_empty_cache_and_of_nonsense(inspan, tmp_path):
    code, out, _ = inspan("prune", "--json")
    assert (code, json.loads(out)["removed"], json.loads(out)["kept"]) == (0, [], [])
    assert inspan("prune", "--keep", "-1")[0] == 2


FAILING = [
    (2, ["show", "nosuch"]),
    (2, ["install", "nosuch"]),
    (2, ["install", "echo", "--sandbox", "docker"]),
    (2, ["install", "echo", "--cache-dir", ""]),
    (3, ["install", "echo", "--cache-dir", "/dev/null"]),
    (3, ["prune", "--cache-dir", "/dev/null"]),
    (2, ["prune", "--cache-dir", " "]),
    (2, ["prune", "--keep", "-1"]),
    (2, ["check", "echo", "--only", "nosuch"]),
    (2, ["check", "echo", "--shell", "bash"]),
    (2, ["check", "echo", "--options", "[]"]),
    (2, ["check", "echo", "--options", "{"]),
    (2, ["check", "echo", "--options", '{"nosuch": 1}']),
    (2, ["check", "echo", "--sandbox", "docker"]),
    (2, ["check", "echo", "--sandbox", "nosuch"]),
    (2, ["new", "pi"]),
    (2, ["new", "my-agent", "--dir", "/"]),
    (2, ["new", "my-agent", "--dir", ""]),
    (2, ["new", "my-agent", "--dir", "/dev/null/x"]),
]


@pytest.mark.parametrize(("expected", "arguments"), FAILING, ids=lambda given: str(given)[:40])
def test_a_failure_is_one_sentence_and_where_json_is_wanted_one_object(inspan, expected, arguments):
    code, out, err = inspan(*arguments)
    assert (code, out, err.count("\n")) == (expected, "", 1)
    code, out, err = inspan(*arguments, "--json")
    told = json.loads(out)
    assert (code, told["exit_code"]) == (expected, expected)
    assert err.strip().endswith(told["error"])


def test_the_demonstration_tells_a_failure_as_json_too(inspan, capsys):
    code = main(["demo", "--harness", "nosuch", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert (code, told["exit_code"], "nosuch" in told["error"]) == (2, 2, True)


@pytest.mark.parametrize("arguments", [["list"], ["show", "echo", "--json"], ["new", "my-agent", "--json"]])
def test_a_reader_that_goes_away_is_no_traceback(tmp_path, arguments):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-c", "import sys; from inspan_server.cli.main import main; sys.exit(main())"]
    ended = subprocess.run(
        [*command, "harness", *arguments], stdout=writer, stderr=subprocess.PIPE, cwd=tmp_path, timeout=50
    )
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (1, b"")


def test_new_makes_a_package_under_its_own_name_everywhere(inspan, tmp_path):
    code, out, _ = inspan("new", "my-agent", "--json")
    told, folder = json.loads(out), tmp_path / "inspan-my-agent"
    assert (code, told["folder"]) == (0, str(folder))
    assert (
        sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()) == told["files"]
    )
    for path in told["files"]:
        text = (folder / path).read_text()
        assert not re.search(r"inspan[-_]echo|@[A-Z]+@|['\"]echo['\"]|\bEcho\b", text), path
        if path.endswith(".py"):
            compile(text, path, "exec")
    project = (folder / "pyproject.toml").read_text()
    assert 'my-agent = "inspan_my_agent"' in project
    assert list(tmp_path.glob(".inspan*")) == [], "a draft was left"


def test_new_overwrites_nothing(inspan, tmp_path):
    precious = tmp_path / "mine"
    precious.mkdir()
    (precious / "file").write_text("stays")
    code, out, err = inspan("new", "my-agent", "--dir", "mine")
    assert (code, out) == (2, "")
    assert "exists: nothing was written" in err
    assert [path.name for path in precious.iterdir()] == ["file"]
    (tmp_path / "link").symlink_to("nowhere")
    assert inspan("new", "my-agent", "--dir", "link")[0] == 2


@pytest.mark.parametrize("name", ["My", "my_agent", "a--b", "a-", "1a", "", "a/b", "../x", "x" * 33, "a\n"])
def test_a_name_that_does_not_fit_is_refused(inspan, tmp_path, name):
    code, _, err = inspan("new", "--dir", "there", "--", name)
    assert (code, "expected lower case letters" in err) == (2, True)
    assert not (tmp_path / "there").exists()


@pytest.mark.parametrize("name", ["echo", "pi", "core", "server"])
def test_a_name_that_is_taken_is_refused(inspan, name):
    code, _, err = inspan("new", name)
    assert (code, "is taken" in err) == (2, True)


def test_what_new_made_keeps_the_rules_at_once(inspan, tmp_path):
    """Its own tests, a sample of them; all of them run where it is installed as a stranger would."""
    inspan("new", "my-agent")
    folder = tmp_path / "inspan-my-agent"
    sample = "declaration or afterwards"
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", sample],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder / "src")},
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert ended.returncode == 0, ended.stdout[-3000:]
    assert re.search(r"\b2 passed", ended.stdout)


def test_every_written_line_of_the_template_is_used():
    import inspan_echo

    template = Path(inspan_echo.__file__).parent / "template"
    assert sorted(path.name for path in template.iterdir()) == [
        "README.md.in",
        "pyproject.toml.in",
        "test_plugin.py.in",
    ]
