"""Ways into a container that no keeper holds: a small process of the host's opens them, one for each holder.

It outlives this process by the minutes in which a restarted one may take its ways over, and ends with the
last of them, or with the container.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
import subprocess
from pathlib import Path

import anyio
import anyio.to_thread

from inspan_core.errors import ReachUnavailable, SandboxGone, SandboxTransportError
from inspan_runtime.providers import boot, state_folder
from inspan_runtime.providers.docker.engine import Engine
from inspan_runtime.providers.interpreter import Interpreter
from inspan_runtime.providers.reach import loopback_address
from inspan_runtime.providers.ways import Way, open_way

FOLDER = "ways"
BACKLOG = 64
START_LIMIT_S = 20.0
ATTEMPTS = 3
WORDS_LIMIT_BYTES = 4096


async def open_borrowed_way(
    engine: Engine,
    container: str,
    url: str,
    *,
    what: str,
    holder: str,
    runtime_dir: Path,
    interpreter: Interpreter,
    timeout_s: float,
) -> Way | None:
    """Open a way into a container that somebody else made.

    Args:
        engine: Where the container is.
        container: Its id.
        url: A URL of the host.
        what: Of what messages speak.
        holder: Who holds the way.
        runtime_dir: The provider's; who opens the ways listens there.
        interpreter: What runs it.
        timeout_s: Seconds until it is given up.

    Raises:
        ReachUnavailable: The engine is on another host, or this user may not enter the container's network.
        SandboxGone: The container does not run.
        SandboxTransportError: There was no answer in time.
    """
    if loopback_address(url) is None:
        return None
    if not engine.is_local:
        raise ReachUnavailable(f"{what} to {url} cannot be opened: the engine is not on this host")
    name = hashlib.sha256(f"{container}\0{holder}".encode()).hexdigest()[:32]
    folder = await anyio.to_thread.run_sync(_folder, runtime_dir)
    try:
        with anyio.fail_after(timeout_s):
            for _ in range(ATTEMPTS):
                try:
                    return await open_way(folder, name, url, what=what, holder=holder, timeout_s=timeout_s)
                except (SandboxGone, SandboxTransportError):
                    # Nobody is there, or the last way was just closed and its process ends.
                    await _start(engine, container, folder / name, what=what, interpreter=interpreter)
            return await open_way(folder, name, url, what=what, holder=holder, timeout_s=timeout_s)
    except TimeoutError as error:
        raise SandboxTransportError(f"{what} to {url}: not open within {timeout_s:g} s") from error


def _folder(runtime_dir: Path) -> Path:
    state_folder.prepare_folder(runtime_dir)
    return state_folder.prepare_folder(runtime_dir / FOLDER)


async def _start(engine: Engine, container: str, path: Path, *, what: str, interpreter: Interpreter) -> None:
    """Start the process that opens the ways of one holder, and hear that it serves."""
    said = await engine.asked(
        "container", "inspect", "--format={{.State.Pid}}", container, what=what, timeout_s=START_LIMIT_S
    )
    if not said.isdigit() or int(said) == 0:
        raise SandboxGone(f"{what}: the container does not run")
    words = await anyio.to_thread.run_sync(_launch, int(said), path, interpreter)
    if words != b"R":
        told = words[1:].decode("utf-8", "replace") or "its process did not start"
        raise ReachUnavailable(f"{what} cannot be opened: {told}")


def _launch(pid: int, path: Path, interpreter: Interpreter) -> bytes:
    listener = _listen(path)
    ours, theirs = socket.socketpair()
    script, feeds = os.pipe()
    try:
        os.write(feeds, boot.program(theirs.fileno()))
        os.close(feeds)
        process = subprocess.Popen(
            boot.command(interpreter.path),
            executable=interpreter.path,
            stdin=script,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={},
            cwd="/",
            pass_fds=(theirs.fileno(), listener.fileno()),
            start_new_session=True,
        )
        theirs.close()
        orders = {"pid": pid, "listen_fd": listener.fileno(), "path": os.fsencode(path)}
        ours.settimeout(START_LIMIT_S)
        ours.sendall(boot.bundle(boot.WAYS_MODULES, orders))
        process.wait()  # It forks what stays.
        return ours.recv(WORDS_LIMIT_BYTES)
    except OSError as error:
        return b"E" + str(error).encode("utf-8", "replace")
    finally:
        os.close(script)
        for one in (listener, ours, theirs):
            one.close()


def _listen(path: Path) -> socket.socket:
    """Listen at a path in the place of whoever did before; it may be longer than a socket's name."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    made = f".new-{secrets.token_hex(8)}"
    try:
        listener.bind(f"/proc/self/fd/{folder}/{made}")
        listener.listen(BACKLOG)
        os.rename(path.parent / made, path)
    except BaseException:
        listener.close()
        raise
    finally:
        os.close(folder)
    return listener
