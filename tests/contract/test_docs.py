"""The pages that are made from the machine's tables are up to date, and the pictures draw all of them."""

import re
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest

from inspan_core import diagram, diagram_svg
from inspan_core.rules import Rule
from inspan_core.session import Phase
from inspan_core.tables import SESSION

ARROWS = {
    (phase.value, to.value)
    for phase, rows in SESSION.items()
    for row in rows.values()
    if isinstance(row, Rule)
    for to in row.to - {phase}
}


def generate(root, *arguments):
    return subprocess.run(
        [sys.executable, root / "docs/generate.py", *arguments], capture_output=True, text=True, timeout=30
    )


def test_the_generated_pages_are_up_to_date(root):
    checked = generate(root, "--check")
    assert (checked.returncode, checked.stderr) == (0, "")


def test_every_link_of_a_page_leads_somewhere(root):
    pages = [
        root / "README.md",
        *root.glob("docs/*.md"),
        *root.glob("*/README.md"),
        *root.glob("plugins/*/README.md"),
    ]
    links = {
        (page.relative_to(root).as_posix(), link)
        for page in pages
        for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
        if not re.match(r"[a-z]+:", link)
    }
    assert len(links) > 10
    assert [
        (page, link) for page, link in sorted(links) if not (root / page).parent.joinpath(link).exists()
    ] == []


def test_a_stale_page_is_named(root, tmp_path):
    for name in ("docs/generate.py", "docs/machine.md", "docs/machine.svg", "README.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((root / name).read_bytes())
    (tmp_path / "docs/machine.md").write_text("old")
    readme = (tmp_path / "README.md").read_text()
    (tmp_path / "README.md").write_text(readme.replace("NEW --> SEEDING", "NEW --> CLOSED"))
    checked = generate(tmp_path, "--check")
    assert checked.returncode == 1
    assert checked.stderr.splitlines() == [
        "docs/machine.md is out of date: run `make docs`",
        "README.md is out of date: run `make docs`",
    ]
    assert generate(tmp_path).returncode == 0
    assert generate(tmp_path, "--check").returncode == 0
    assert (tmp_path / "README.md").read_text() == readme


def test_the_graph_has_every_arrow():
    found = re.findall(r'^    (\w+) -> (\w+) \[label="', diagram.dot(), re.MULTILINE)
    assert len(found) == len(set(found))
    assert set(found) == ARROWS


def test_the_picture_has_every_box_arrow_and_word():
    picture = ET.fromstring(diagram.svg())
    name = "{http://www.w3.org/2000/svg}"
    texts = [each.text for each in picture.iter(f"{name}text")]
    assert {phase.value for phase in Phase} <= set(texts)
    assert len(picture.findall(f"{name}path")) == len(ARROWS)
    assert {"SeedRequested", "StragglerEnded", "WindowEnded"} <= set(texts)


def test_nothing_in_the_picture_covers_another():
    picture = diagram_svg.laid_out([phase.value for phase in SESSION], list(diagram._arrows()))
    boxes = [
        (left, top, left + diagram_svg.BOX_WIDTH, top + diagram_svg.BOX_HEIGHT)
        for left, top in picture.boxes.values()
    ]
    words = [
        (
            label.left,
            label.top - diagram_svg.LINE_HEIGHT,
            label.left + diagram_svg.width_of(label),
            label.top + (len(label.lines) - 1) * diagram_svg.LINE_HEIGHT,
        )
        for label in picture.labels
    ]
    things = [*boxes, *words]
    for at, one in enumerate(things):
        assert 0 <= one[0] <= one[2] <= picture.width
        assert 0 <= one[1] <= one[3] <= picture.height
        for other in things[at + 1 :]:
            apart = one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
            assert apart, (one, other)


@pytest.mark.parametrize("form", list(diagram.FORMATS))
def test_every_format_ends_with_a_line(form):
    assert diagram.FORMATS[form]().endswith("\n")
