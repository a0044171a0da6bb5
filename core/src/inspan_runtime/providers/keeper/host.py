"""The kernel calls of the keeper that Python has no function for."""

from __future__ import annotations

import ctypes
import os

CLONE_NEWNS = 0x00020000
MS_NOSUID, MS_NODEV = 0x2, 0x4
MS_REC, MS_SLAVE = 0x4000, 0x80000
MNT_DETACH = 2
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NAME = 15
KEYCTL_JOIN_SESSION_KEYRING = 1
KEYCTL_NUMBERS = {"x86_64": 250, "aarch64": 219, "riscv64": 219}

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def adopt_orphans() -> None:
    """Become the parent of every orphaned descendant, under a neutral name."""
    _check(_libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "cannot become a subreaper")
    _libc.prctl(PR_SET_NAME, b"inspan-keeper", 0, 0, 0)


def leave_session_keyring() -> None:
    """Take an empty session keyring: who possesses the server's may use its keys."""
    number = KEYCTL_NUMBERS.get(os.uname().machine)
    if number is not None:
        _libc.syscall(number, KEYCTL_JOIN_SESSION_KEYRING, None)


def enter_private_mounts() -> None:
    """Get a mount namespace whose mounts nobody else sees; unmounts of the host still arrive."""
    _check(_libc.unshare(CLONE_NEWNS), "cannot make a mount namespace")
    _check(_libc.mount(None, b"/", None, MS_REC | MS_SLAVE, None), "cannot make the mounts private")


def mount(kind: str, target: bytes, options: bytes, flags: int = 0) -> None:
    source = b"inspan"
    result = _libc.mount(source, target, kind.encode(), flags, options)
    _check(result, f"cannot mount {kind} at {os.fsdecode(target)}")


def unmount(target: bytes) -> None:
    """Detach a mount; one that is not there is fine."""
    _libc.umount2(target, MNT_DETACH)
