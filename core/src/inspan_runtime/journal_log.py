"""The journal's log: a file to which each record is added with one write, and which is begun anew at times.

What is handed to the kernel survives the death of the process; what is synced, that of the machine. The head
of the file holds the number of the last record that was acknowledged, written after the record itself. So
what a killed process did not finish writing, which never happened, is told from what somebody cut off or
damaged.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from attrs import frozen

from inspan_runtime.journal import JournalError
from inspan_runtime.journal_record import Broken, Record, encode_record, read_records

LOG_VERSION: Final = 3
_MAGIC: Final = b"inspanJL"
_HEADER = struct.Struct("<8sI?36s")
_ACKNOWLEDGED = struct.Struct("<Q")
_pack_number = _ACKNOWLEDGED.pack
_ACKNOWLEDGED_AT: Final = 64
HEADER_BYTES: Final = 128
BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")


@frozen(kw_only=True)
class FoundLog:
    """What stands in a log that a process left.

    Attributes:
        records: All that can be read, in order.
        broken: Why what follows cannot be read, or None.
        acknowledged: Number of the last record that somebody was told is kept.
        is_of_this_boot: Whether the machine has run ever since.
        is_synced: Whether nothing was acknowledged before the disk had it.
    """

    records: Sequence[Record]
    broken: Broken | None
    acknowledged: int
    is_of_this_boot: bool
    is_synced: bool


class LogFile:
    """Writes records. One process at a time has the file.

    Args:
        path: An existing log.
        last: Number of the last record that is kept elsewhere: the log begins after it.
        is_synced: Whether records are acknowledged only when the disk has them.

    Attributes:
        last: Number of the last record.
        end: How long the log is, in bytes.

    Raises:
        OSError: It cannot be opened or written.
    """

    def __init__(self, path: Path, *, last: int, is_synced: bool) -> None:
        self.path = path
        self.last = last
        self.end = HEADER_BYTES
        self._fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        self._is_whole = True
        try:
            # In this order: a log that ends before `last`, and does not say so, is taken for an older one.
            _write_all(self._fd, _header(last, is_synced), 0)
            os.ftruncate(self._fd, HEADER_BYTES)
        except BaseException:
            os.close(self._fd)
            raise

    def append(self, body: bytes, *, acknowledges: bool) -> None:
        """Hand a record to the kernel: all of it, or, when it raises, nothing.

        Args:
            acknowledges: Whether somebody is told at once that it is kept.

        Raises:
            OSError: A full disk, for example. A later one may succeed.
        """
        number = self.last + 1
        data = encode_record(number, body)
        if not self._is_whole:
            self._mend()
        self._is_whole = False
        try:
            _write_all(self._fd, data, self.end)
            if acknowledges:
                os.pwrite(self._fd, _pack_number(number), _ACKNOWLEDGED_AT)
        except OSError:
            self.cut_back(self.end, self.last)
            raise
        self.end += len(data)
        self.last = number
        self._is_whole = True

    def acknowledge(self, number: int) -> None:
        """Note that somebody is about to be told of all records up to one.

        Raises:
            OSError: It could not be noted.
        """
        os.pwrite(self._fd, _pack_number(number), _ACKNOWLEDGED_AT)

    def sync(self) -> None:
        """Wait until the disk has all that was written. May run in a thread while records are added.

        Raises:
            OSError: It does not have it.
        """
        os.fdatasync(self._fd)

    def cut_back(self, end: int, last: int) -> None:
        """Take back what was added after `end`. What cannot be cut now is cut before the next record."""
        self.end, self.last, self._is_whole = end, last, False
        with suppress(OSError):
            self._mend()

    def clear(self) -> None:
        """Begin anew: all records are kept elsewhere."""
        self.cut_back(HEADER_BYTES, self.last)

    def _mend(self) -> None:
        os.ftruncate(self._fd, self.end)
        self._is_whole = True

    def close(self) -> None:
        """Release the file; whoever writes later is told, and writes into no other's."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def make_log(path: Path) -> None:
    """Make an empty log, whole or not at all, readable by nobody else.

    Raises:
        OSError: It cannot be made.
    """
    draft = path.with_name(f"{path.name}.part")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        _write_all(descriptor, _header(0, is_synced=False), 0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    draft.rename(path)


def read_log(path: Path) -> FoundLog:
    """Read a log; nothing is changed.

    Raises:
        JournalError: It is no log of this version.
        OSError: It cannot be read.
    """
    # A pipe or a device has no end, and is not waited for.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise JournalError(f"{path} is not a file")
        data = file.read()
    if len(data) < HEADER_BYTES:
        raise JournalError(f"{path} is cut off: it has {len(data)} bytes, and its head alone {HEADER_BYTES}")
    magic, version, is_synced, boot_id = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise JournalError(f"{path} is not the log of a journal: it begins with {magic!r}, not {_MAGIC!r}")
    if version != LOG_VERSION:
        raise JournalError(f"{path} is of version {version}, and this inspan reads version {LOG_VERSION}")
    (acknowledged,) = _ACKNOWLEDGED.unpack_from(data, _ACKNOWLEDGED_AT)
    records: list[Record] = []
    broken: Broken | None = None
    for each in read_records(data, HEADER_BYTES):
        if isinstance(each, Broken):
            broken = each
        else:
            records.append(each)
    return FoundLog(
        records=records,
        broken=broken,
        acknowledged=acknowledged,
        is_of_this_boot=boot_id == _boot_id(),
        is_synced=is_synced,
    )


def _header(acknowledged: int, is_synced: bool) -> bytes:
    head = _HEADER.pack(_MAGIC, LOG_VERSION, is_synced, _boot_id()).ljust(_ACKNOWLEDGED_AT, b"\0")
    return (head + _ACKNOWLEDGED.pack(acknowledged)).ljust(HEADER_BYTES, b"\0")


def _boot_id() -> bytes:
    try:
        return BOOT_ID_FILE.read_bytes()[:36]
    except OSError:
        return b"\0" * 36


def _write_all(descriptor: int, data: bytes, offset: int) -> None:
    written = os.pwrite(descriptor, data, offset)
    while written < len(data):
        # A full disk takes a part, and says why only when it is asked again.
        more = os.pwrite(descriptor, data[written:], offset + written)
        if not more:
            raise OSError(errno.EIO, "nothing more is taken")
        written += more
