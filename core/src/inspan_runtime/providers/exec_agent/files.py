"""Receive and send one file, without following a link in its last component."""

from __future__ import annotations

import os
import stat
import struct

from inspan_runtime.providers.exec_agent.frames import encode
from inspan_runtime.providers.exec_agent.lean import TYPE_CHECKING

CHUNK_BYTES = 256 * 1024
MODE_END = 0o7777

if TYPE_CHECKING:
    from inspan_runtime.providers.exec_agent.connections import Connection


class Refused(Exception):
    """A file operation that is refused; args: kind, message."""


def split_path(path: bytes) -> tuple[bytes, bytes]:
    """Return (parent, name) of an absolute path that can name a file."""
    parent, _, name = path.rpartition(b"/")
    if not path.startswith(b"/") or b"\0" in path or name in (b"", b".", b".."):
        raise Refused(b"unsafe", b"not an absolute path of a file")
    return parent or b"/", name


def open_folder(path: bytes) -> int:
    """Return a handle of an absolute path's folder, made with all that leads to it.

    Part by part: `os.makedirs` calls itself, and a path may have 2047 parts.
    """
    flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        at = os.open("/", flags)
    try:
        for part in filter(None, path.split(b"/")):
            try:
                os.mkdir(part, dir_fd=at)
            except FileExistsError:  # Or it is no folder: opening it tells.
                pass
            inner = os.open(part, flags, dir_fd=at)
            os.close(at)
            at = inner
    except OSError:
        os.close(at)
        raise
    return at


def kind_of(mode: int) -> bytes:
    """Return what a thing is, when it is no regular file."""
    kinds = ((stat.S_ISLNK, b"a symbolic link"), (stat.S_ISDIR, b"a folder"), (stat.S_ISFIFO, b"a FIFO"),
             (stat.S_ISSOCK, b"a socket"))  # fmt: skip
    return next((name for test, name in kinds if test(mode)), b"a device")


class Upload:
    """A file that is being received, beside its final name until it is whole."""

    def __init__(self, connection: Connection, fields: list[bytes]) -> None:
        self._connection = connection
        self.body_bytes = int(fields[3])
        self._mode = int(fields[2])
        if not 0 <= self._mode <= MODE_END:
            raise ValueError(f"mode {self._mode:o} is not one of a file")
        self._error: list[bytes] | None = None
        self._folder: int | None = None
        self._file: int | None = None
        try:
            parent, self._name = split_path(fields[1])
            self._folder = open_folder(parent)
            self._refuse_taken(self._folder)
            self._part = b".inspan-" + os.urandom(8).hex().encode() + b".part"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self._file = os.open(self._part, flags, 0o600, dir_fd=self._folder)
        except (Refused, OSError) as error:
            self._fail(error)

    def _refuse_taken(self, folder: int) -> None:
        try:
            mode = os.stat(self._name, dir_fd=folder, follow_symlinks=False).st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISREG(mode):
            raise Refused(b"unsafe", b"it is " + kind_of(mode))

    def feed(self, data: bytes) -> None:
        if self._error is None and self._file is not None:
            view = memoryview(data)
            try:
                while view:
                    view = view[os.write(self._file, view) :]
            except OSError as error:
                self._fail(error)

    def finish(self) -> None:
        try:
            if self._error is None and self._file is not None and self._folder is not None:
                os.fchmod(self._file, self._mode)
                self._refuse_taken(self._folder)
                os.rename(self._part, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except (Refused, OSError) as error:
            self._fail(error)
        if self._error is None:
            self._release()
            self._connection.reply([b"ok"])
        else:
            self._connection.reply(self._error)

    def _fail(self, error: Refused | OSError) -> None:
        self._error = describe(error)
        if self._file is not None:
            try:
                os.unlink(self._part, dir_fd=self._folder)
            except OSError:  # Whoever removed it did what is wanted.
                pass
        self._release()

    def _release(self) -> None:
        for fd in (self._file, self._folder):
            if fd is not None:
                os.close(fd)
        self._file = self._folder = None

    def lost(self, *, is_cancelled: bool) -> None:
        if self._error is None and self._file is not None:
            self._fail(Refused(b"lost", b""))
        self._connection.close()


def describe(error: Refused | OSError) -> list[bytes]:
    """Return the reply fields of a failed file operation."""
    if isinstance(error, Refused):
        return list(error.args)
    kind = b"not_found" if isinstance(error, (FileNotFoundError, NotADirectoryError)) else b"os"
    return [kind, (error.strerror or "error").encode("utf-8", "replace")]


class Download:
    """A file that is being sent, in chunks of (u32 length, bytes), the last of length 0."""

    body_bytes = 0

    def __init__(self, connection: Connection, fields: list[bytes]) -> None:
        self._connection = connection
        self._file: int | None = None
        path, limit, tail = fields[1], int(fields[2]), fields[3] == b"tail"
        try:
            split_path(path)
            # O_PATH first: opening a FIFO or device by itself may block or act.
            handle = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                found = os.fstat(handle)
                if not stat.S_ISREG(found.st_mode):
                    raise Refused(b"unsafe", b"it is " + kind_of(found.st_mode))
                if found.st_size > limit and not tail:
                    raise Refused(b"too_large", b"%d" % found.st_size)
                # A lease on the file would hold up everybody's operations until the kernel breaks it.
                flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
                self._file = os.open(f"/proc/self/fd/{handle}", flags)
            finally:
                os.close(handle)
            os.lseek(self._file, max(0, found.st_size - limit), os.SEEK_SET)
        except (Refused, OSError) as error:
            connection.reply(describe(error))
            return
        self._left = limit
        connection.send(encode([b"ok", b"%d" % found.st_size]), self._more)

    def feed(self, data: bytes) -> None:
        """A download has no body."""

    def finish(self) -> None:
        """A download has no body."""

    def _more(self) -> None:
        try:
            size = min(CHUNK_BYTES, self._left)
            data = os.read(self._file, size) if self._file is not None else b""
        except OSError:
            self.lost(is_cancelled=False)
            return
        self._left -= len(data)
        if data:
            self._connection.send(struct.pack(">I", len(data)) + data, self._more)
        else:
            self._release()
            self._connection.send(struct.pack(">I", 0), self._connection.close)

    def lost(self, *, is_cancelled: bool) -> None:
        self._release()
        self._connection.close()

    def _release(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
