"""The contexts that a harness's hooks receive: what a plugin may see and do, and no more."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import define, field

from inspan_core.errors import SandboxError, TooLarge, UnsafePath, UsageError
from inspan_core.harness import ArtifactProblem, Artifacts, Installer
from inspan_core.sandbox import Sandbox
from inspan_core.wire import ToolAccess

ARTIFACT_TOTAL_LIMIT_BYTES = 256 * 1024 * 1024
"""All artifacts of a session together; a plugin bounds each file by itself as well."""


@define(kw_only=True)
class SessionContext:
    """Implements `inspan_core.harness.HarnessContext`."""

    sandbox: Sandbox
    session_dir: str
    workdir: str
    installer: Installer
    options: Mapping[str, Any]
    tool_accesses: Sequence[ToolAccess] = field(default=(), repr=False)

    async def upload_text(self, name: str, text: str, *, mode: int = 0o600) -> str:
        """Write ``session_dir/name``; returns the absolute path inside."""
        path = inside(self.session_dir, name)
        await self.sandbox.upload(path, text.encode("utf-8", "surrogatepass"), mode=mode)
        return path

    async def read_text(self, name: str, *, limit_bytes: int, tail: bool = False) -> str:
        """Read ``session_dir/name``; undecodable bytes are replaced."""
        content = await self.sandbox.download(
            inside(self.session_dir, name), limit_bytes=limit_bytes, tail=tail
        )
        return content.data.decode("utf-8", "replace")


@define(kw_only=True)
class RunContext(SessionContext):
    """Implements `inspan_core.harness.ActivationContext`. Its text shows no key."""

    request: Mapping[str, Any] = field(repr=False)
    runtime: Mapping[str, Any]
    model_base_url: str
    model_name: str
    model_key: str = field(repr=False)
    run_timeout_s: float


@define(kw_only=True)
class ArtifactContext(SessionContext):
    """Implements `inspan_core.harness.CollectContext` and holds what was copied."""

    files: dict[str, bytes] = field(factory=dict, repr=False)
    problems: list[ArtifactProblem] = field(factory=list)

    async def download(
        self, name: str, *, limit_bytes: int, tail: bool = False, optional: bool = False
    ) -> bool:
        """Copy ``session_dir/name`` into the artifacts; what cannot be had is recorded, not raised."""
        path = inside(self.session_dir, name)
        held = sum(len(data) for data in self.files.values())
        bound = min(limit_bytes, ARTIFACT_TOTAL_LIMIT_BYTES - held)
        try:
            content = await self.sandbox.download(path, limit_bytes=max(bound, 0), tail=tail)
        except FileNotFoundError:
            if not optional:
                self._problem(name, "artifact_missing", "it does not exist")
        except UnsafePath as error:
            self._problem(name, "artifact_unsafe", str(error))
        except TooLarge as error:
            self._problem(name, "artifact_too_large", str(error))
        else:
            self.files[name] = content.data
            if content.truncated:
                kept = f"the last {len(content.data)} of {content.size_bytes} bytes were kept"
                self._problem(name, "artifact_truncated", kept)
            return True
        return False

    def _problem(self, name: str, code: str, detail: str) -> None:
        self.problems.append(ArtifactProblem(name=name, code=code, detail=f"{name}: {detail}"))

    @property
    def artifacts(self) -> Artifacts:
        """What was copied so far."""
        return Artifacts(files=dict(self.files), problems=tuple(self.problems))


def inside(session_dir: str, name: str) -> str:
    """The path of `name` in the session's folder.

    Raises:
        UsageError: `name` would lead out of the folder.
    """
    path = posixpath.normpath(posixpath.join(session_dir, name))
    if posixpath.isabs(name) or not path.startswith(session_dir.rstrip("/") + "/"):
        raise UsageError(f"artifact name {name!r} must be relative and stay inside the session's folder")
    return path


def is_transport_error(error: BaseException) -> bool:
    """Whether the sandbox, and not the plugin, made a hook fail."""
    return isinstance(error, SandboxError) and not isinstance(error, TooLarge | UnsafePath)
