"""Constraints on wire values, written into the types: ``Annotated[str, Text(min_length=1)]``.

The converter in `inspan_core.structuring` reads them; the types themselves do not check anything.
"""

from __future__ import annotations

from attrs import frozen

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
RESERVED_SUFFIX_PATTERN = r"-a[0-9]+$"


@frozen(kw_only=True)
class Text:
    """A bounded string.

    Attributes:
        min_length: Fewest characters.
        max_length: Most characters, None for no bound of its own (the body is bounded).
        pattern: A regular expression that must match, or None.
        reserved: A regular expression that must not be found, or None.
        reserved_reason: What the error says about `reserved`.
    """

    min_length: int = 0
    max_length: int | None = None
    pattern: str | None = None
    reserved: str | None = None
    reserved_reason: str = "is reserved"


@frozen(kw_only=True)
class Whole:
    """A bounded whole number.

    Attributes:
        minimum: The least value, or None.
        maximum: The greatest value, or None.
        numeric_text: Whether a string of decimal digits counts, as the servers in the field take it.
    """

    minimum: int | None = None
    maximum: int | None = None
    numeric_text: bool = False


@frozen
class HttpUrl:
    """An absolute http or https URL with a host, of bounded length.

    Two that differ in the final slash are the same.
    """


@frozen
class HeaderMap:
    """Header or cookie names and values that cannot break out of their line, bounded in number and size."""


Constraint = Text | Whole | HttpUrl | HeaderMap
