"""A task: a small git repository, what the agent is told, and the command that verifies it.

On disk a task is a folder::

    task.yaml      task_id, instruction, verify; optional: taskset, setup, setup_timeout_s, verify_timeout_s
    files/         the repository as the agent finds it
    verify/        optional: files that verification puts in place first, over whatever the agent left
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import yaml
from attrs import field, frozen

from inspan_core.codec import decode
from inspan_core.errors import ConfigError, WireError
from inspan_core.wire import TaskId
from inspan_server.bounded_file import read_bounded

MAX_FILE_BYTES = 16 * 1024 * 1024
MAX_FILES = 1000


@frozen
class TaskFile:
    """A file of a task.

    Attributes:
        mode: Permission bits, 0o644 or 0o755.
    """

    data: bytes
    mode: int = 0o644


@frozen(kw_only=True)
class Task:
    """A task.

    Attributes:
        files: Relative path to file: the repository's first commit.
        instruction: What the agent is told.
        verify: Command run in the repository; exit code 0 is reward 1.
        verify_files: Put in place before `verify`, so that an agent cannot pass by editing the tests.
        setup: Command run in the repository before the first commit; empty: none.
        setup_timeout_s: Bound of `setup`, in seconds.
        verify_timeout_s: Bound of `verify`, in seconds; a command that runs longer has failed.
    """

    task_id: TaskId
    files: Mapping[str, TaskFile]
    instruction: str
    verify: tuple[str, ...]
    verify_files: Mapping[str, TaskFile] = field(factory=dict)
    setup: tuple[str, ...] = ()
    setup_timeout_s: float = 300.0
    verify_timeout_s: float = 300.0

    def __attrs_post_init__(self) -> None:
        for path in (*self.files, *self.verify_files):
            pure = PurePosixPath(path)
            if pure.is_absolute() or not pure.parts or ".." in pure.parts or pure.parts[0] == ".git":
                raise ConfigError(
                    f"task {self.task_id.task_id}: file {path!r}: expected a path below it, not .git"
                )
        if not self.verify:
            raise ConfigError(f"task {self.task_id.task_id}: verify: expected a command")


@frozen(kw_only=True)
class _TaskText:
    """What `task.yaml` holds."""

    task_id: str
    instruction: str
    verify: tuple[str, ...]
    taskset: str = "local"
    setup: tuple[str, ...] = ()
    setup_timeout_s: float = 300.0
    verify_timeout_s: float = 300.0


def load_task(folder: str | Path) -> Task:
    """Read a task's folder.

    Raises:
        ConfigError: Something is missing, too large or does not fit; the message names it.
    """
    folder = Path(folder)
    described = folder / "task.yaml"
    try:
        value: Any = yaml.safe_load(read_bounded(described, MAX_FILE_BYTES).decode("utf-8"))
        text = decode(_TaskText, value)
        files = _read_files(folder / "files")
        verify_files = _read_files(folder / "verify")
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"task {folder}: {error}") from error
    except WireError as error:
        raise ConfigError(f"{described}: {error}".replace(" body.", " ")) from error
    if not files:
        raise ConfigError(f"task {folder}: files: expected a folder with at least one file")
    return Task(
        task_id=TaskId(taskset=text.taskset, task_id=text.task_id),
        files=files,
        instruction=text.instruction,
        verify=text.verify,
        verify_files=verify_files,
        setup=text.setup,
        setup_timeout_s=text.setup_timeout_s,
        verify_timeout_s=text.verify_timeout_s,
    )


def _read_files(folder: Path) -> dict[str, TaskFile]:
    found: dict[str, TaskFile] = {}
    for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
        if path.is_symlink():
            raise ConfigError(f"{path}: a link; a task holds plain files")
        if not path.is_file():
            continue
        if len(found) == MAX_FILES or path.stat().st_size > MAX_FILE_BYTES:
            raise ConfigError(f"{path}: a task holds at most {MAX_FILES} files of {MAX_FILE_BYTES} bytes")
        mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
        found[path.relative_to(folder).as_posix()] = TaskFile(path.read_bytes(), mode)
    return found
