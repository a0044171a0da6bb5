"""What is checked of a plugin before anything of it is used."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import get_args

import attrs
from pluggy import PluginManager

from inspan_core import hookspecs
from inspan_core.errors import PluginError
from inspan_core.harness import FieldUse, HarnessSpec, ModelApi
from inspan_core.relay import HARNESS_HOOKS
from inspan_core.wire import ResponsesRequest

_NAME = re.compile(r"[a-z][a-z0-9-]{0,31}")
_LEVELS = range(1, 6)


def check_plugin(plugin: object, manager: PluginManager) -> None:
    """Whether the hooks of one plugin belong together.

    Args:
        manager: Knows this plugin only.

    Raises:
        PluginError: A hook is unknown, lacks its marker, is missing, or can never be called.
    """
    marked = {caller.name for caller in manager.get_hookcallers(plugin) or ()}
    for name in dir(plugin):
        if name.startswith("inspan_") and callable(getattr(plugin, name)) and name not in marked:
            known = hasattr(hookspecs, name)
            raise PluginError(f"{name} lacks @hookimpl" if known else f"{name} is not a hook of inspan")
    own = {name for name in marked if _is_implemented(manager, name)}
    missing = [name for name in HARNESS_HOOKS if name not in own]
    if "inspan_harness" in own and missing:
        raise PluginError(f"declares a harness, but does not implement {', '.join(missing)}")
    stray = sorted(own.intersection(HARNESS_HOOKS))
    if "inspan_harness" not in own and stray:
        raise PluginError(
            f"implements {', '.join(stray)} without inspan_harness: for another plugin's harness "
            "use @hookimpl(wrapper=True)"
        )


def check_spec(spec: object) -> None:
    """Whether a declaration is sound.

    Raises:
        PluginError: Names the field, its value and what was expected.
    """
    if not isinstance(spec, HarnessSpec):
        raise PluginError(f"inspan_harness returned {type(spec).__name__}, expected a HarnessSpec")
    if not _NAME.fullmatch(spec.name):
        raise PluginError(f"name is {spec.name!r}, expected lower case letters, digits and '-'")
    if spec.level not in _LEVELS:
        raise PluginError(f"level is {spec.level!r}, expected 1 to 5")
    if spec.model_api not in get_args(ModelApi):
        raise PluginError(f"model_api is {spec.model_api!r}, expected one of {get_args(ModelApi)}")
    unlisted = [name for name in ("input", "metadata") if name not in spec.request_fields]
    if unlisted:
        raise PluginError(f"request_fields does not list {' and '.join(unlisted)}")
    known = [each.name for each in attrs.fields(ResponsesRequest) if each.name != "raw"]
    for name, use in spec.request_fields.items():
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise PluginError(f"request_fields[{name!r}] is no field of a Responses request{hint}")
        if use not in get_args(FieldUse):
            raise PluginError(f"request_fields[{name!r}] is {use!r}, expected one of {get_args(FieldUse)}")


def _is_implemented(manager: PluginManager, name: str) -> bool:
    implementations = getattr(manager.hook, name).get_hookimpls()
    return any(not (each.wrapper or each.hookwrapper) for each in implementations)
