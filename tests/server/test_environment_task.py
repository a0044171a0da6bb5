"""A task's folder is read strictly."""

import pytest

from inspan_core.errors import ConfigError
from inspan_core.wire import TaskId
from inspan_server.environment.task import Task, TaskFile, load_task

YAML = 'task_id: t\ninstruction: "Do it"\nverify: [python3, -m, unittest]\n'


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "files" / "sub").mkdir(parents=True)
    (tmp_path / "files" / "sub" / "a.py").write_bytes(b"A\xff")
    (tmp_path / "files" / "run").write_text("#!/bin/sh\n")
    (tmp_path / "files" / "run").chmod(0o755)
    (tmp_path / "task.yaml").write_text(YAML)
    return tmp_path


def test_a_folder_becomes_a_task(folder):
    (folder / "verify").mkdir()
    (folder / "verify" / "test_a.py").write_text("T")
    (folder / "task.yaml").write_text(YAML + "taskset: s\nsetup: [make]\nverify_timeout_s: 5\n")
    assert load_task(folder) == Task(
        task_id=TaskId(taskset="s", task_id="t"),
        files={"sub/a.py": TaskFile(b"A\xff"), "run": TaskFile(b"#!/bin/sh\n", 0o755)},
        instruction="Do it",
        verify=("python3", "-m", "unittest"),
        verify_files={"test_a.py": TaskFile(b"T")},
        setup=("make",),
        verify_timeout_s=5,
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (YAML + "rewards: 1\n", "rewards"),
        ("task_id: t\ninstruction: x\n", "verify"),
        (YAML.replace("[python3, -m, unittest]", "pytest"), "verify.*array"),
        (YAML.replace("[python3, -m, unittest]", "[]"), "verify: expected a command"),
        ("{", "while parsing"),
        ("", "task.yaml"),
    ],
)
def test_a_description_that_does_not_fit_is_named(folder, text, message):
    (folder / "task.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_task(folder)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(ConfigError, match="nowhere"):
        load_task(tmp_path / "nowhere")


def test_a_task_without_files_is_refused(tmp_path):
    (tmp_path / "task.yaml").write_text(YAML)
    with pytest.raises(ConfigError, match="files: expected a folder"):
        load_task(tmp_path)


def test_links_are_refused(folder):
    (folder / "files" / "link").symlink_to("/etc/hostname")
    with pytest.raises(ConfigError, match="link: a link"):
        load_task(folder)


@pytest.mark.parametrize("path", ["/etc/x", "../x", "a/../../x", ".git/hooks/post-commit", ""])
def test_paths_outside_the_repository_are_refused(path):
    with pytest.raises(ConfigError, match="expected a path below it"):
        Task(
            task_id=TaskId(taskset="s", task_id="t"),
            files={path: TaskFile(b"")},
            instruction="",
            verify=("true",),
        )


def test_a_description_without_end_is_refused(tmp_path):
    (tmp_path / "files").mkdir()
    (tmp_path / "task.yaml").symlink_to("/dev/zero")
    with pytest.raises(ConfigError, match="larger than"):
        load_task(tmp_path)
