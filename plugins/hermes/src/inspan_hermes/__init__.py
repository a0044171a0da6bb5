"""Hermes (hermes-agent) as an inspan harness."""

from __future__ import annotations

from inspan_hermes.hooks import (
    inspan_collect,
    inspan_harness,
    inspan_install,
    inspan_parse,
    inspan_stage,
)
from inspan_hermes.sandbox import HarnessProcessInfo, parse_runtime_info

__all__ = [
    "HarnessProcessInfo",
    "inspan_collect",
    "inspan_harness",
    "inspan_install",
    "inspan_parse",
    "inspan_stage",
    "parse_runtime_info",
]
