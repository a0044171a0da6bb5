"""Reads and writes single files of the host as a sandbox would: no link is followed, nothing is unbounded."""

from __future__ import annotations

import os
import secrets
import shutil
import stat
from collections.abc import Callable
from typing import BinaryIO

from inspan_core.errors import SandboxError, TooLarge, UnsafePath
from inspan_core.sandbox import FileContent
from inspan_runtime.providers.exec_agent.files import Refused, kind_of, split_path


def write(path: str, data: bytes, mode: int) -> None:
    """Write a file atomically; parents are made."""

    def fill(file: BinaryIO) -> None:
        file.write(data)

    _write(path, mode, fill)


def copy(path: str, source: str, mode: int) -> None:
    """Copy a file atomically; parents are made."""

    def fill(file: BinaryIO) -> None:
        with open(source, "rb") as from_file:
            shutil.copyfileobj(from_file, file)

    _write(path, mode, fill)


def _write(path: str, mode: int, fill: Callable[[BinaryIO], None]) -> None:
    parent, name = _split(path)
    try:
        os.makedirs(parent, mode=0o700, exist_ok=True)
        folder = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise SandboxError(f"{path} cannot be written: {error.strerror}") from error
    part = b".inspan-" + secrets.token_hex(8).encode() + b".part"
    try:
        _refuse_taken(path, name, folder)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(part, flags, 0o600, dir_fd=folder), "wb") as file:
            fill(file)
            os.fchmod(file.fileno(), mode)
        os.rename(part, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError as error:
        raise SandboxError(f"{path} cannot be written: {error.strerror}") from error
    finally:
        try:
            os.unlink(part, dir_fd=folder)
        except FileNotFoundError:  # It has its final name.
            pass
        os.close(folder)


def _refuse_taken(path: str, name: bytes, folder: int) -> None:
    try:
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        raise UnsafePath(f"{path} on the host is {kind_of(mode).decode()}")


def read(path: str, limit_bytes: int, tail: bool) -> FileContent:
    """Read a regular file.

    Raises:
        FileNotFoundError, UnsafePath, TooLarge: See `inspan_core.sandbox.Sandbox.download`.
    """
    _split(path)
    # O_PATH first: opening a FIFO or device by itself may block or act.
    handle = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise UnsafePath(f"{path} on the host is {kind_of(found.st_mode).decode()}")
        if found.st_size > limit_bytes and not tail:
            raise TooLarge(f"{path} has {found.st_size} bytes, the limit is {limit_bytes}")
        with open(f"/proc/self/fd/{handle}", "rb") as file:
            file.seek(max(0, found.st_size - limit_bytes))
            data = file.read(limit_bytes)
    finally:
        os.close(handle)
    return FileContent(data=data, size_bytes=found.st_size, truncated=found.st_size > limit_bytes)


def _split(path: str) -> tuple[bytes, bytes]:
    try:
        return split_path(os.fsencode(path))
    except Refused as error:
        raise UnsafePath(f"{path!r} is {error.args[1].decode()}") from error
