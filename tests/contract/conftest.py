"""What the tests about the repository itself look at."""

import ast
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def _tracked():
    """Files of the repository, also new ones; without what is ignored."""
    listing = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        check=True,
        capture_output=True,
        timeout=30,
    )
    names = {name for name in listing.stdout.decode().split("\0") if name}
    return sorted(path for path in (ROOT / name for name in names) if path.is_file())


@pytest.fixture(scope="session")
def root():
    return ROOT


@pytest.fixture(scope="session")
def tracked():
    return _tracked()


@pytest.fixture(scope="session")
def modules(tracked):
    """Every source file of a distribution: its dotted name, its path below the root, and its syntax tree."""
    found = {}
    for path in tracked:
        name = path.relative_to(ROOT).as_posix()
        if path.suffix == ".py" and "/src/" in name and not name.startswith("tests/"):
            dotted = name.partition("/src/")[2].removesuffix(".py").removesuffix("/__init__")
            found[name] = (dotted.replace("/", "."), ast.parse(path.read_bytes(), name))
    return found


@pytest.fixture(scope="session")
def projects(root):
    """Each distribution's pyproject file."""
    return sorted([*root.glob("*/pyproject.toml"), *root.glob("plugins/*/pyproject.toml")])
