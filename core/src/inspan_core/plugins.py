"""Find the installed plugins, check each by itself, and hand out harnesses and sandbox providers.

A plugin is a module (or an object) with hook functions. One that cannot be loaded never hides the
others: what is wrong with it is kept and named when somebody asks for what it would have brought.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from importlib import metadata
from typing import Any, TypeVar

from attrs import define, field, frozen
from pluggy import PluginManager

from inspan_core.errors import PluginError
from inspan_core.harness import HarnessSpec
from inspan_core.plugin_checks import check_plugin, check_spec
from inspan_core.relay import Harness, HookManager, build_harness
from inspan_core.sandbox import SandboxProvider

GROUP = "inspan"
"""The entry point group."""

ProviderFactory = Callable[[Mapping[str, Any]], SandboxProvider]
T = TypeVar("T")


@frozen(kw_only=True)
class PluginProblem:
    """Why a plugin, or a part of it, cannot be used.

    Attributes:
        distribution: Who brought it, for example ``"inspan-pi"``.
        message: One sentence.
        error: The exception with its traceback, or None.
    """

    distribution: str
    message: str
    error: BaseException | None = field(default=None, eq=False, repr=False)

    def __str__(self) -> str:
        return f"{self.distribution}: {self.message}"


@frozen
class _Loaded:
    distribution: str
    plugin: object
    manager: PluginManager
    spec: HarnessSpec | None
    providers: Mapping[str, ProviderFactory]


@define
class Plugins:
    """What is installed.

    Attributes:
        problems: What is broken, in the order found.
    """

    problems: tuple[PluginProblem, ...]
    _harnesses: Mapping[str, Harness | str] = field(repr=False, alias="harnesses")
    _providers: Mapping[str, ProviderFactory | str] = field(repr=False, alias="providers")
    _observers: tuple[_Loaded, ...] = field(repr=False, alias="observers")

    def harness_names(self) -> tuple[str, ...]:
        """The harnesses that can be used, sorted."""
        return tuple(sorted(name for name, item in self._harnesses.items() if not isinstance(item, str)))

    def harness(self, name: str) -> Harness:
        """The harness called `name`.

        Raises:
            PluginError: There is none, or two plugins claim the name. Lists what is installed and broken.
        """
        return self._pick("harness", name, self._harnesses)

    def provider_factories(self) -> Mapping[str, ProviderFactory]:
        """Every usable kind of sandbox provider, with the factory that takes its options."""
        return {name: item for name, item in self._providers.items() if not isinstance(item, str)}

    def provider_factory(self, name: str) -> ProviderFactory:
        """The factory of the provider kind `name`.

        Raises:
            PluginError: As for `harness`.
        """
        return self._pick("sandbox provider", name, self._providers)

    @property
    def is_observed(self) -> bool:
        """Whether any plugin observes transitions."""
        return bool(self._observers)

    def observe(self, transition: Mapping[str, Any]) -> tuple[PluginProblem, ...]:
        """Show a committed transition to every observer; a failing one stops nobody.

        Returns:
            What failed, for the caller's log.
        """
        failures: list[PluginProblem] = []
        for loaded in self._observers:
            try:
                loaded.manager.hook.inspan_observe(transition=transition)
            except Exception as error:
                failures.append(_problem(loaded.distribution, "inspan_observe failed", error))
        return tuple(failures)

    def _pick(self, what: str, name: str, items: Mapping[str, T | str]) -> T:
        item = items.get(name)
        if item is None:
            usable = sorted(key for key, value in items.items() if not isinstance(value, str))
            broken = "; ".join(map(str, self.problems))
            raise PluginError(
                f"no {what} is called {name!r} (installed: {', '.join(usable) or 'none'}"
                + (f"; broken: {broken})" if broken else ")")
            )
        if isinstance(item, str):
            raise PluginError(item)
        return item


def load_plugins(extra: Iterable[object] = (), *, entry_points: bool = True) -> Plugins:
    """Load plugins, each by itself.

    Args:
        extra: Plugins (modules or objects) to use beside the installed ones.
        entry_points: Whether to look for the plugins that are installed in the group ``inspan``.
    """
    problems: list[PluginProblem] = []
    loaded: list[_Loaded] = []
    for distribution, find in _candidates(extra, entry_points):
        try:
            plugin = find()
            if any(plugin is each.plugin for each in loaded):
                continue
            loaded.append(_load(distribution, plugin))
        except (Exception, SystemExit) as error:
            problems.append(_problem(distribution, "cannot be loaded", error))
    harnesses = _owned("harness", problems, ((each, each.spec.name, each) for each in loaded if each.spec))
    providers = _owned(
        "sandbox provider",
        problems,
        ((each, name, factory) for each in loaded for name, factory in each.providers.items()),
    )
    return Plugins(
        problems=tuple(problems),
        harnesses={
            name: item if isinstance(item, str) else _relay_of(item, loaded)
            for name, item in harnesses.items()
        },
        providers=providers,
        observers=tuple(each for each in loaded if each.manager.hook.inspan_observe.get_hookimpls()),
    )


def _candidates(extra: Iterable[object], entry_points: bool) -> Iterator[tuple[str, Callable[[], object]]]:
    for plugin in extra:
        name = getattr(plugin, "__name__", None) or type(plugin).__name__
        yield name, partial(_itself, plugin)
    if entry_points:
        for point in sorted(metadata.entry_points(group=GROUP), key=lambda each: each.name):
            yield point.dist.name if point.dist is not None else point.name, point.load


def _itself(plugin: object) -> object:
    return plugin


def _load(distribution: str, plugin: object) -> _Loaded:
    manager = HookManager()
    manager.register(plugin)
    manager.check_pending()
    check_plugin(plugin, manager)
    spec = manager.hook.inspan_harness()
    if spec is not None:
        check_spec(spec)
    providers: dict[str, ProviderFactory] = {}
    for contributed in manager.hook.inspan_sandbox_providers():
        providers.update(contributed)
    return _Loaded(distribution, plugin, manager, spec, providers)


def _owned(
    what: str, problems: list[PluginProblem], claims: Iterable[tuple[_Loaded, str, T]]
) -> dict[str, T | str]:
    """Each name with what it stands for, or with a sentence where two plugins claim it."""
    owners: dict[str, list[str]] = {}
    items: dict[str, T | str] = {}
    for owner, name, item in claims:
        owners.setdefault(name, []).append(owner.distribution)
        items[name] = item
    for name, names in owners.items():
        if len(names) > 1:
            sentence = f"the {what} name {name!r} is claimed by {' and by '.join(names)}: uninstall one"
            items[name] = sentence
            problems.append(PluginProblem(distribution=", ".join(names), message=sentence))
    return items


def _relay_of(owner: _Loaded, loaded: Iterable[_Loaded]) -> Harness:
    if owner.spec is None:
        raise PluginError(f"{owner.distribution} declares no harness")
    others = [each.plugin for each in loaded if each is not owner]
    return build_harness(owner.spec, owner.distribution, owner.plugin, others)


def _problem(distribution: str, what: str, error: BaseException) -> PluginProblem:
    detail = " ".join(str(error).split())[:500]
    message = f"{what}: {type(error).__name__}: {detail}"
    return PluginProblem(distribution=distribution, message=message, error=error)
