"""Runs inside sandboxes: unpacks a runtime archive into a private folder, and publishes it atomically.

Standard library only, Python 3.8 syntax; given to the sandbox's interpreter on standard input. One JSON
object on argv[1] says what to do, one JSON object on stdout says what came of it.
"""

import fcntl
import json
import os
import re
import shutil
import sys
import tarfile
import time
from typing import Any, Dict, Optional

MARKER = ".inspan-ready"
# Older private folders belong to installations that died: none takes so long.
STALE_S = 3600.0
# A time that is further ahead was written by a clock that was wrong.
FUTURE_S = 86400.0


def unpack(order: Dict[str, Any]) -> Dict[str, Any]:
    """Unpack the archive at `archive` into the new folder `private`, then delete the archive."""
    private = order["private"]
    sweep(os.path.dirname(private))
    os.mkdir(private, 0o755)
    try:
        with tarfile.open(order["archive"], "r:") as archive:
            for member in archive:
                target = os.path.normpath(os.path.join(private, member.name))
                if not target.startswith(private + os.sep):
                    return {"error": f"the archive holds a name that leads out: {member.name!r}"}
                put(archive, member, target)
    finally:
        os.unlink(order["archive"])
    return {}


def sweep(root: str) -> None:
    """Remove what installations left that were killed."""
    for name in os.listdir(root):
        path = os.path.join(root, name)
        if not re.fullmatch(r"\.[0-9a-f]{32}(\.tar|\.old)?", name) or os.path.islink(path):
            continue
        try:
            if -FUTURE_S < time.time() - os.lstat(path).st_mtime < STALE_S:
                continue
            if os.path.isdir(path):
                shutil.rmtree(path, ignore_errors=True)
            else:
                os.unlink(path)
        except FileNotFoundError:
            continue


def put(archive: tarfile.TarFile, member: tarfile.TarInfo, target: str) -> None:
    """Create one member: only folders, plain files and the archive's own links exist in runtimes."""
    if member.isdir():
        os.makedirs(target, 0o755, exist_ok=True)
        return
    os.makedirs(os.path.dirname(target), 0o755, exist_ok=True)
    if member.issym():
        os.symlink(member.linkname, target)
    elif member.isfile():
        source = archive.extractfile(member)
        if source is None:
            raise ValueError(f"the archive has no bytes for {member.name!r}")
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, member.mode & 0o755)
        with os.fdopen(descriptor, "wb") as out:
            shutil.copyfileobj(source, out, 1024 * 1024)
    else:
        raise ValueError(f"the archive holds a special file: {member.name!r}")


def publish(order: Dict[str, Any]) -> Dict[str, Any]:
    """Move `private` to `prefix` unless another installation took the place since `seen` was read."""
    private, prefix = order["private"], order["prefix"]
    with open(os.path.join(private, MARKER), "w") as marker:
        json.dump(order["marker"], marker)
    lock = os.open(os.path.dirname(prefix) + "/.lock", os.O_RDWR | os.O_CREAT, 0o644)
    fcntl.flock(lock, fcntl.LOCK_EX)
    aside = private + ".old"
    try:
        present = read_marker(prefix)
        if present is not None and present != order["seen"]:
            shutil.rmtree(private, ignore_errors=True)
            return {"kept": present}
        try:
            os.rename(prefix, aside)
        except FileNotFoundError:
            pass
        os.rename(private, prefix)
    finally:
        os.close(lock)
    if os.path.islink(aside) or not os.path.isdir(aside):
        if os.path.lexists(aside):
            os.unlink(aside)
    else:
        shutil.rmtree(aside, ignore_errors=True)
    return {"published": order["marker"]}


def read_marker(prefix: str) -> Optional[Any]:
    """What the runtime at `prefix` says of itself, or None."""
    try:
        with open(os.path.join(prefix, MARKER)) as marker:
            return json.loads(marker.read(4096))
    except (OSError, ValueError, RecursionError):
        return None


def discard(order: Dict[str, Any]) -> Dict[str, Any]:
    """Remove a private folder and an archive that are not needed any more."""
    shutil.rmtree(order["private"], ignore_errors=True)
    if os.path.lexists(order["archive"]):
        os.unlink(order["archive"])
    return {}


def main() -> None:
    """Obey one order."""
    order = json.loads(sys.argv[1])
    try:
        answer = {"unpack": unpack, "publish": publish, "discard": discard}[order["do"]](order)
    except (OSError, ValueError, tarfile.TarError) as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
