"""What `docs/harnesses.md` says of harnesses and faults is what plugins declare and the tests try."""

import re
from pathlib import Path

import pytest

import inspan_codex
import inspan_echo
import inspan_hermes
import inspan_pi

from .expected import DIFFERS, USUAL, page_reasons, page_rows
from .faults import FAULTS, HARNESSES

PAGE = (Path(__file__).parents[2] / "docs" / "harnesses.md").read_text(encoding="utf-8")
PLUGINS = {"pi": inspan_pi, "codex": inspan_codex, "hermes": inspan_hermes, "echo": inspan_echo}


def test_the_page_has_the_table_and_its_reasons():
    assert "\n".join(page_rows()) in PAGE
    reasons = re.findall(r"^(\d+)\. (.+)\.$", PAGE, re.MULTILINE)
    assert reasons == [(str(number), why) for number, why in enumerate(page_reasons(), 1)]


def test_the_table_is_that_of_the_faults():
    assert list(USUAL) == list(FAULTS)
    assert {(fault, harness) for fault in FAULTS for harness in HARNESSES} >= set(DIFFERS)
    assert [key for key, (ends, _) in DIFFERS.items() if ends == USUAL[key[0]]] == []


@pytest.mark.parametrize("name", PLUGINS)
def test_the_page_has_what_the_plugin_declares(name):
    spec = PLUGINS[name].inspan_harness()
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| **{name}**"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    applied = sorted(field for field, fate in spec.request_fields.items() if fate == "applied")
    assert cells[1] == f"{spec.version}"
    assert cells[2] == {"responses": "Responses", "chat_completions": "Chat Completions"}[spec.model_api]
    assert cells[3] == ", ".join(sorted(spec.tool_sources))
    assert cells[4] == ", ".join(f"`{field}`" for field in applied)
