"""What an image's name means now."""

from __future__ import annotations

from attrs import frozen

from inspan_core.errors import ImageMissing, SandboxCreateError
from inspan_runtime.providers.docker.engine import Engine, explained
from inspan_runtime.providers.docker.portable import own_architecture

INSPECT_LIMIT_S = 30.0
PULL_LIMIT_S = 1800.0
FORMAT = "{{.Id}} {{.Architecture}} {{.Os}} {{range .RepoDigests}}{{.}} {{end}}"


@frozen(kw_only=True)
class Image:
    """An image of the engine's.

    Attributes:
        id: ``sha256:...``: another image never has it.
        architecture: For which machines it says it is, by the engine's names.
        digests: What registries call it, ``sha256:...`` each.
    """

    id: str
    architecture: str
    digests: tuple[str, ...] = ()

    @property
    def is_ours(self) -> bool:
        """Whether programs of this machine run in it."""
        return self.architecture == own_architecture()


class Images:
    """Finds images, and remembers those whose names cannot come to mean others.

    Args:
        may_pull: Whether a missing one is pulled.
    """

    def __init__(self, *, may_pull: bool) -> None:
        self._may_pull = may_pull
        self._known: dict[str, Image] = {}

    async def find(self, engine: Engine, reference: str) -> Image:
        """Return what a reference means now.

        Raises:
            ImageMissing: The engine does not have it, and may not or cannot pull it.
            SandboxCreateError: It is not for Linux.
            ProviderUnavailable: The engine does not answer.
        """
        if reference in self._known:
            return self._known[reference]
        what = f"image {reference}"
        inspect = ("image", "inspect", f"--format={FORMAT}", reference)
        called = await engine.call(*inspect, timeout_s=INSPECT_LIMIT_S)
        if called.exit_code != 0:
            error = explained(called.said, what=what)
            if not isinstance(error, ImageMissing) or not self._may_pull:
                raise error
            await engine.asked("pull", "--quiet", reference, what=what, timeout_s=PULL_LIMIT_S)
            called = await engine.call(*inspect, timeout_s=INSPECT_LIMIT_S)
            if called.exit_code != 0:
                raise explained(called.said, what=what)
        identity, architecture, system, *names = called.stdout.decode("utf-8", "replace").split()
        if system != "linux":
            raise SandboxCreateError(f"{what} is for {system}, not for linux")
        found = Image(
            id=identity if identity.startswith("sha256:") else f"sha256:{identity}",
            architecture=architecture,
            digests=tuple(dict.fromkeys(name.rpartition("@")[2] for name in names if "@sha256:" in name)),
        )
        if "@sha256:" in reference or reference.startswith("sha256:"):
            self._known[reference] = found
        return found
