"""Write what is made from the machine's tables: docs/machine.md, docs/machine.svg and the README's diagram.

python docs/generate.py            write them
python docs/generate.py --check    write nothing; exit 1 and name what is out of date
"""

import sys
from pathlib import Path

from inspan_core import diagram

ROOT = Path(__file__).resolve().parents[1]
BEGINS, ENDS = "<!-- machine diagram: made by `make docs` -->\n", "<!-- end of machine diagram -->"


def readme(text: str) -> str:
    """Put the diagram between its marks."""
    before, mark, rest = text.partition("<!-- machine diagram")
    _, end, after = rest.partition(ENDS)
    if not mark or not end:
        raise SystemExit("README.md: expected the marks of the machine diagram")
    return f"{before}{BEGINS}```mermaid\n{diagram.mermaid()}```\n{ENDS}{after}"


def main() -> int:
    """Write or compare the pages."""
    pages = {
        ROOT / "docs/machine.md": diagram.page(),
        ROOT / "docs/machine.svg": diagram.svg(),
        ROOT / "README.md": readme((ROOT / "README.md").read_text(encoding="utf-8")),
    }
    stale = [path for path, text in pages.items() if not path.exists() or path.read_text("utf-8") != text]
    for path in stale:
        if "--check" in sys.argv:
            sys.stderr.write(f"{path.relative_to(ROOT)} is out of date: run `make docs`\n")
        else:
            path.write_text(pages[path], "utf-8")
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
