"""What a run leaves behind: a folder with its rollout, the model calls and the artifacts."""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from attrs import frozen

from inspan_core.errors import UsageError
from inspan_core.harness import Artifacts


@frozen
class RunFolder:
    """The folder of one run; files in it are written whole or not at all."""

    path: Path

    @classmethod
    def make(cls, wanted: str | None) -> RunFolder:
        """Make the folder.

        Args:
            wanted: A folder that does not exist or is empty; None: a new one below ``./runs``.

        Raises:
            UsageError: It holds something, or cannot be made.
        """
        stamp = time.strftime("%Y%m%d-%H%M%S")
        path = Path(wanted) if wanted is not None else Path("runs", f"{stamp}-{secrets.token_hex(3)}")
        try:
            path.mkdir(parents=True, exist_ok=True)
            if any(path.iterdir()):
                raise UsageError(f"--run-dir {path}: holds files already; name a new folder")
        except OSError as error:
            raise UsageError(f"--run-dir {path}: cannot be made: {error.strerror}") from error
        return cls(path.absolute())

    def write(self, name: str, data: bytes) -> None:
        """Write a file of the folder."""
        target = self.path / name
        temporary = target.with_name(f".{target.name}.part")
        temporary.write_bytes(data)
        os.replace(temporary, target)

    def write_rollout(self, rollout: Mapping[str, Any]) -> None:
        """Write the one line of ``rollout.jsonl``."""
        self.write("rollout.jsonl", json.dumps(rollout).encode("ascii") + b"\n")

    def write_artifacts(self, artifacts: Artifacts) -> list[str]:
        """Write collected files below ``artifacts/``; the sandbox named them, so names are checked.

        Returns:
            The names that were written.
        """
        folder = self.path / "artifacts"
        folder.mkdir(exist_ok=True)
        written = []
        for name, data in artifacts.files.items():
            parts = PurePosixPath(name).parts
            if not parts or parts[0] == "/" or ".." in parts or "\0" in name:
                continue
            target = folder.joinpath(*parts)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
            written.append(name)
        return written
