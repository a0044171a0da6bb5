"""A provider around another one: a place for one defect, to see that a check can fail."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inspan_core.sandbox import Descriptor, SandboxProvider, SandboxSpec


class WrappedSandbox:
    """A sandbox that hands everything on; a subclass changes one thing."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class WrappedProvider:
    """A provider of sandboxes of one wrapped kind; it declares what the inner one does."""

    wrapped: type[WrappedSandbox] = WrappedSandbox

    def __init__(self, inner: SandboxProvider) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    @property
    def name(self) -> str:
        return self.inner.name

    async def create(self, spec: SandboxSpec, *, key: str, timeout_s: float = 60.0) -> Any:
        return self.wrapped(await self.inner.create(spec, key=key, timeout_s=timeout_s))

    async def connect(self, descriptor: Descriptor, *, timeout_s: float = 30.0) -> Any:
        return self.wrapped(await self.inner.connect(descriptor, timeout_s=timeout_s))

    async def stop(self, key: str, *, timeout_s: float = 30.0) -> None:
        await self.inner.stop(key, timeout_s=timeout_s)

    async def list(self, labels: Mapping[str, str]) -> list[Descriptor]:
        return await self.inner.list(labels)

    async def aclose(self) -> None:
        await self.inner.aclose()


def of(kind: type[WrappedSandbox]) -> type[WrappedProvider]:
    """Return a provider whose sandboxes are of a wrapped kind."""
    return type(f"{kind.__name__}Provider", (WrappedProvider,), {"wrapped": kind})
