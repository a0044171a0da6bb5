"""Which providers a command line speaks of: kinds that are installed, and blocks of a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from inspan_core.errors import ConfigError
from inspan_core.plugins import Plugins, load_plugins
from inspan_core.sandbox import SandboxProvider, SandboxSpec
from inspan_runtime.providers import builtin
from inspan_server.agent.config_reading import read_config

BUILTIN_ORDER = ("bubblewrap", "docker", "local")


@frozen(kw_only=True)
class Block:
    """A provider with its options.

    Attributes:
        name: The block's name; the kind's where there is no block.
        kind: The provider's kind.
        options: Without ``kind``.
    """

    name: str
    kind: str
    options: Mapping[str, Any]


class Blocks:
    """The blocks of a configuration, and after them each kind by itself.

    Args:
        config: Path of an Agent Server's configuration, or None.

    Raises:
        ConfigError: The configuration does not fit.
    """

    def __init__(self, config: str | None) -> None:
        self.plugins: Plugins = load_plugins([builtin])
        self._blocks: dict[str, Block] = {}
        if config is not None:
            for name, given in read_config(Path(config)).sandbox_providers.items():
                options = {key: value for key, value in given.items() if key != "kind"}
                self._blocks[name] = Block(name=name, kind=str(given["kind"]), options=options)
        for kind in self.kinds():
            self._blocks.setdefault(kind, Block(name=kind, kind=kind, options={}))

    def kinds(self) -> list[str]:
        """All installed kinds, the built-in ones first."""
        others = sorted(set(self.plugins.provider_factories()) - set(BUILTIN_ORDER))
        return [*BUILTIN_ORDER, *others]

    def names(self) -> list[str]:
        """All blocks' names."""
        return list(self._blocks)

    def block(self, name: str) -> Block:
        """Return a block by its name.

        Raises:
            ConfigError: There is none; lists what there is.
        """
        if name not in self._blocks:
            raise ConfigError(f"there is no provider {name!r}; there are: {', '.join(self._blocks)}")
        return self._blocks[name]

    def provider(self, block: Block) -> SandboxProvider:
        """Make a provider.

        Raises:
            ConfigError: An option does not fit.
        """
        factory = self.plugins.provider_factory(block.kind)
        try:
            return factory(dict(block.options))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"provider {block.name}: {error}") from error


def spec_for(block: Block, workdir: str, image: str | None, **changes: Any) -> SandboxSpec:
    """Return a specification for a look or a check.

    Args:
        block: The provider's.
        workdir: Absolute folder inside.
        image: For providers that have images; None: the block's own.
        changes: Further fields.
    """
    given = {} if image is None else {"image": image}
    return SandboxSpec(**{"workdir": workdir, "ttl_s": 600.0, **given, **changes})
