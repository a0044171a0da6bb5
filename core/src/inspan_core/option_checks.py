"""Checks of a harness's options, for plugins: each names the option, its value and what was expected."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NoReturn, cast

from attrs import field, frozen

from inspan_core.errors import ConfigError
from inspan_core.harness import HarnessSpec


@frozen
class Options:
    """The complete options of a harness, and how to say that one does not fit.

    Every check raises `ConfigError`.

    Attributes:
        harness: The harness's name, for messages.
        values: By name.
    """

    harness: str
    values: Mapping[str, Any] = field(repr=False)

    def refuse(self, name: str, expected: str) -> NoReturn:
        """Say that an option does not fit."""
        raise ConfigError(f"option {name!r} of {self.harness} is {self.values[name]!r}, expected {expected}")

    def whole_numbers(self, least: Mapping[str, int]) -> None:
        """Each option named is a whole number that is not below its least value."""
        for name, smallest in least.items():
            value = self.values[name]
            if not isinstance(value, int) or isinstance(value, bool) or value < smallest:
                self.refuse(name, f"a whole number >= {smallest}")

    def number(self, name: str, least: float, most: float) -> None:
        """The option is a number in a range."""
        value = self.values[name]
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            self.refuse(name, f"a number from {least:g} to {most:g}")

    def truths(self, *names: str) -> None:
        """Each option named is true or false."""
        for name in names:
            if not isinstance(self.values[name], bool):
                self.refuse(name, "true or false")

    def one_of(self, name: str, allowed: Collection[str]) -> None:
        """The option is one of some words."""
        if self.values[name] not in allowed:
            self.refuse(name, f"one of {', '.join(allowed)}")

    def list_of(self, name: str, allowed: Collection[str]) -> None:
        """The option is a list of some words."""
        value = self.values[name]
        words = cast("Collection[object]", value) if isinstance(value, list | tuple) else (None,)
        if any(word not in allowed for word in words):
            self.refuse(name, f"a list of {', '.join(allowed)}")


def complete_options(spec: HarnessSpec, given: Mapping[str, Any]) -> Options:
    """The declared defaults with `given` over them.

    Raises:
        ConfigError: One is not declared.
    """
    unknown = sorted(set(given) - set(spec.options))
    if unknown:
        known = ", ".join(sorted(spec.options))
        raise ConfigError(f"unknown option {unknown[0]!r} of {spec.name}; known: {known}")
    return Options(spec.name, {**spec.options, **given})
