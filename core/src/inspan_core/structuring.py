"""The strict converter: what stock cattrs would coerce is refused, and every fault is named by its place.

Every hook raises `Faults` with places relative to its own value; the hook of the enclosing value puts
its own key in front. So a fault's full path is known at the top without walking notes twice.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import lru_cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

import attrs
from cattrs import ClassValidationError, Converter
from cattrs.errors import AttributeValidationNote, ForbiddenExtraKeysError
from cattrs.gen import make_dict_structure_fn

from inspan_core.constraint_checks import constraint_check, number_of_text
from inspan_core.constraints import Constraint, HttpUrl
from inspan_core.faults import Fault, Faults, fault
from inspan_core.json_shapes import is_array, is_object

Hook = Callable[[Any, Any], Any]
HookFactory = Callable[[Any], Hook]
_END_OF_64_BITS = 2**63


def build_converter(checks: Mapping[type, Callable[[Any, Any], None]]) -> Converter:
    """The strict converter.

    Args:
        checks: For a class, a rule over more than one of its fields: called with the new value and its
            JSON object, raises `Faults`.
    """
    converter = Converter(forbid_extra_keys=True, detailed_validation=True)
    for scalar, hook in ((str, _string), (bool, _boolean), (int, _whole), (float, _number)):
        converter.register_structure_hook(scalar, hook)
    converter.register_structure_hook_func(lambda kind: kind is Any, lambda value, _: value)
    converter.register_structure_hook_factory(lambda kind: _origin(kind) is Literal, _literal_hook)
    factories: tuple[tuple[Callable[[Any], bool], HookFactory], ...] = (
        (_is_list, lambda kind: _list_hook(kind, converter)),
        (_is_mapping, lambda kind: _mapping_hook(kind, converter)),
        (_is_union, lambda kind: _union_hook(kind, converter)),
        (_is_constrained, lambda kind: _checked_hook(kind, converter)),
        (attrs.has, lambda kind: _class_hook(kind, converter, checks)),
    )
    for fits, factory in factories:
        converter.register_structure_hook_factory(fits, factory)

    def unstructure_of(kind: Any) -> Callable[[Any], list[Any]]:
        return _plain_list_hook(converter)

    converter.register_unstructure_hook_factory(_is_tuple, unstructure_of)
    return converter


def _origin(kind: Any) -> Any:
    return get_origin(kind)


def _string(value: Any, _: Any) -> str:
    if type(value) is not str:
        raise fault("string_type", "must be a string", value)
    return value


def _boolean(value: Any, _: Any) -> bool:
    if type(value) is not bool:
        raise fault("bool_type", "must be true or false", value)
    return value


def _whole(value: Any, _: Any) -> int:
    if type(value) is not int:
        raise fault("int_type", "must be a whole number", value)
    return _in_64_bits(value)


def _number(value: Any, _: Any) -> float:
    if not isinstance(value, float | int) or isinstance(value, bool):
        raise fault("float_type", "must be a number", value)
    return _in_64_bits(value) if isinstance(value, int) else value


def _in_64_bits(value: int) -> int:
    """A whole number that everybody can hold: Python's have no end."""
    if not -_END_OF_64_BITS <= value < _END_OF_64_BITS:
        raise fault("int_out_of_range", "must fit into 64 bits", value)
    return value


def _literal_hook(kind: Any) -> Callable[[Any, Any], Any]:
    allowed = get_args(kind)
    expected = " or ".join(repr(item) if isinstance(item, str) else str(item).lower() for item in allowed)

    def structure(value: Any, _: Any) -> Any:
        if not any(type(value) is type(item) and value == item for item in allowed):
            raise fault("literal_error", f"must be {expected}", value)
        return value

    return structure


def _is_list(kind: Any) -> bool:
    return get_origin(kind) in (list, tuple)


def _list_hook(kind: Any, converter: Converter) -> Callable[[Any, Any], Any]:
    item_kind, make = get_args(kind)[0], get_origin(kind)
    inner = converter.get_structure_hook(item_kind)

    def structure(value: Any, _: Any) -> Any:
        if not is_array(value):
            raise fault("list_type", "must be an array", value)
        items: list[Any] = []
        faults: list[Fault] = []
        for index, item in enumerate(value):
            try:
                items.append(inner(item, item_kind))
            except Faults as error:
                faults += error.under(index)
        if faults:
            raise Faults(faults)
        return make(items)

    return structure


def _is_tuple(kind: Any) -> bool:
    return get_origin(kind) is tuple


def _is_mapping(kind: Any) -> bool:
    origin = get_origin(kind)
    return origin is dict or origin is Mapping


def _mapping_hook(kind: Any, converter: Converter) -> Callable[[Any, Any], Any]:
    item_kind = get_args(kind)[1]
    inner = converter.get_structure_hook(item_kind)

    def structure(value: Any, _: Any) -> Any:
        if not is_object(value):
            raise fault("dict_type", "must be an object", value)
        items: dict[str, Any] = {}
        faults: list[Fault] = []
        for key, item in value.items():
            try:
                items[_string(key, str)] = inner(item, item_kind)
            except Faults as error:
                faults += error.under(str(key))
        if faults:
            raise Faults(faults)
        return items

    return structure


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in (Union, UnionType)


def _union_hook(kind: Any, converter: Converter) -> Callable[[Any, Any], Any]:
    """Null, or one class chosen by its `kind`, or one plain type chosen by the JSON type."""
    members = [member for member in get_args(kind) if member is not type(None)]
    nullable = len(members) < len(get_args(kind))
    choose = _tag_hook(members, converter) if len(members) > 1 and all(map(attrs.has, members)) else None
    by_type = {_json_type(member): member for member in members} if choose is None else {}
    hooks = {name: converter.get_structure_hook(member) for name, member in by_type.items()}

    def structure(value: Any, _: Any) -> Any:
        if value is None and nullable:
            return None
        if choose is not None:
            return choose(value)
        if len(members) == 1:
            return next(iter(hooks.values()))(value, members[0])
        name = type(cast(object, value))
        if name is int and int not in hooks:
            name = float
        if name not in hooks:
            names = " or ".join(_JSON_NAMES[item] for item in by_type)
            raise fault("union_type", f"must be {names}", value)
        return hooks[name](value, by_type[name])

    return structure


_JSON_NAMES: Mapping[type, str] = {
    str: "a string", bool: "true or false", int: "a whole number", float: "a number",
    list: "an array", dict: "an object", tuple: "an array",
}  # fmt: skip


def _json_type(kind: Any) -> type[Any]:
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if get_origin(kind) is Literal:
        literal: object = get_args(kind)[0]
        return type(literal)
    if attrs.has(kind):
        return dict
    origin: type[Any] = get_origin(kind) or kind
    if issubclass(origin, Mapping):
        return dict
    return list if origin is tuple else origin


def _tag_hook(members: list[Any], converter: Converter) -> Callable[[Any], Any]:
    tags = {_tag(member): member for member in members}
    expected = ", ".join(repr(tag) for tag in tags)

    def structure(value: Any) -> Any:
        if not is_object(value):
            raise fault("model_attributes_type", "must be an object", value)
        if "kind" not in value:
            raise fault("union_tag_not_found", f"needs 'kind', one of {expected}", value)
        tag: Any = value["kind"]
        member = tags.get(tag) if type(tag) is str else None
        if member is None:
            raise fault("union_tag_invalid", f"'kind' must be one of {expected}", value)
        try:
            return converter.structure(value, member)
        except Faults as error:
            raise Faults(error.under(tag)) from error

    return structure


def _tag(member: type) -> str:
    kind = attrs.fields_dict(attrs.resolve_types(member, include_extras=True))["kind"].type
    return str(get_args(kind)[0])


def _is_constrained(kind: Any) -> bool:
    return get_origin(kind) is Annotated and any(isinstance(item, Constraint) for item in get_args(kind)[1:])


def _checked_hook(kind: Any, converter: Converter) -> Callable[[Any, Any], Any]:
    plain, *notes = get_args(kind)
    constraint = next(note for note in notes if isinstance(note, Constraint))
    inner = converter.get_structure_hook(plain)
    check = constraint_check(constraint)

    def structure(value: Any, _: Any) -> Any:
        structured = inner(number_of_text(value, constraint), plain)
        check(structured)
        return structured

    return structure


def _class_hook(
    kind: type[Any], converter: Converter, checks: Mapping[type, Callable[[Any, Any], None]]
) -> Callable[[Any, Any], Any]:
    generated = cast(
        Hook,
        make_dict_structure_fn(
            kind, converter, _cattrs_forbid_extra_keys=True, _cattrs_detailed_validation=True
        ),
    )
    check = checks.get(kind)

    def structure(value: Any, _: Any) -> Any:
        if not is_object(value):
            raise fault("model_attributes_type", "must be an object", value)
        try:
            made = generated(value, kind)
        except ClassValidationError as error:
            raise Faults(_class_faults(error, value)) from None
        if check is not None:
            check(made, value)
        return made

    return structure


def _class_faults(error: ClassValidationError, value: dict[str, Any]) -> list[Fault]:
    faults: list[Fault] = []
    for cause in error.exceptions:
        name = _attribute_of(cause)
        match cause:
            case Faults() if name is not None:
                faults += cause.under(name)
            case KeyError() if name is not None:
                faults.append(("missing", (name,), "is required", value))
            case ForbiddenExtraKeysError():
                names = sorted(cause.extra_fields, key=str)
                message = "is not a field of this object"
                faults += [("extra_forbidden", (extra,), message, value[extra]) for extra in names]
            case _:
                raise cause
    return faults


def _attribute_of(cause: BaseException) -> str | None:
    for note in getattr(cause, "__notes__", ()):
        if isinstance(note, AttributeValidationNote):
            return str(note.name)
    return None


def _plain_list_hook(converter: Converter) -> Callable[[Any], list[Any]]:
    def unstructure(value: tuple[Any, ...]) -> list[Any]:
        return [converter.unstructure(item) for item in value]

    return unstructure


@lru_cache(maxsize=64)
def url_fields(kind: Hashable) -> frozenset[str]:
    """The names of an attrs class's fields that hold URLs."""
    return frozenset(
        attribute.name
        for attribute in attrs.fields(attrs.resolve_types(cast(Any, kind), include_extras=True))
        if any(isinstance(note, HttpUrl) for note in get_args(attribute.type)[1:])
    )
