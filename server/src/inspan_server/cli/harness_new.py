"""`inspan harness new`: a package for a plugin of one's own, from the template that inspan-echo brings."""

from __future__ import annotations

import json
import re
import secrets
import shutil
from collections.abc import Iterator
from importlib import metadata, resources
from importlib.resources.abc import Traversable
from pathlib import Path

from inspan_core.errors import UsageError
from inspan_core.plugins import load_plugins
from inspan_server.cli.exit_codes import DONE

TEMPLATE = "inspan_echo"
NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
NAME_LIMIT = 32
TAKEN = frozenset({"core", "runtime", "server", "supervisor", "echo", "pi", "codex", "hermes"})
MODULE_DOCSTRING = re.compile(r'\A""".*?"""', re.DOTALL)
SUMMARY = re.compile(r'summary="[^"]*"')


def new_harness(name: str, folder: str | None, *, as_json: bool) -> int:
    """Make the package.

    Returns:
        0.

    Raises:
        UsageError: The name does not fit or is taken, the folder exists, or there is no template.
    """
    check_name(name)
    target = Path(f"inspan-{name}" if folder is None else folder).absolute()
    if not target.name or (folder is not None and not folder.strip()):
        raise UsageError(f"--dir is {folder!r}, expected the name of a new folder")
    files = dict(package_files(name))
    draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        for path, text in files.items():
            (draft / path).parent.mkdir(parents=True, exist_ok=True)
            (draft / path).write_text(text, encoding="utf-8")
        if target.exists() or target.is_symlink():
            raise UsageError(f"{target} exists: nothing was written; choose another folder by --dir")
        draft.rename(target)
    except OSError as error:
        raise UsageError(f"{target} cannot be made: {error.strerror or error}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    if as_json:
        print(json.dumps({"harness": name, "folder": str(target), "files": sorted(files)}, indent=2))
    else:
        print(f"made {target}\nnext: cd {target} && pip install -e '.[test]' && pytest")
    return DONE


def check_name(name: str) -> None:
    """Refuse a name that no plugin can have, or that one has.

    Raises:
        UsageError: Says what was expected.
    """
    if not NAME.fullmatch(name) or len(name) > NAME_LIMIT:
        expected = f"lower case letters, digits and single '-' between them, at most {NAME_LIMIT}"
        raise UsageError(f"the name {name!r} does not fit; expected {expected}, for example my-agent")
    if name in TAKEN or name in load_plugins().harness_names():
        raise UsageError(f"the name {name!r} is taken: choose another")


def package_files(name: str) -> Iterator[tuple[str, str]]:
    """The package's files: path below its folder, text.

    Raises:
        UsageError: inspan-echo, which brings the template, is not installed.
    """
    try:
        source, version = resources.files(TEMPLATE), metadata.version("inspan-core")
    except ModuleNotFoundError as error:
        raise UsageError("the template is not installed; install it with: pip install inspan-echo") from error
    package = f"inspan_{name.replace('-', '_')}"
    words = {
        "@NAME@": name,
        "@PACKAGE@": package,
        "@DISTRIBUTION@": f"inspan-{name}",
        "@VERSION@": version,
    }
    template = source / "template"
    for place, kind in (("pyproject.toml", ""), ("README.md", ""), ("test_plugin.py", "tests/")):
        yield f"{kind}{place}", _filled(template / f"{place}.in", words)
    for module in source.iterdir():
        if module.name.endswith((".py", ".typed")):
            yield f"src/{package}/{module.name}", _renamed(module, name, package)


def _filled(file: Traversable, words: dict[str, str]) -> str:
    text = file.read_text(encoding="utf-8")
    for word, meaning in words.items():
        text = text.replace(word, meaning)
    return text


def _renamed(module: Traversable, name: str, package: str) -> str:
    text = module.read_text(encoding="utf-8").replace(TEMPLATE, package)
    if module.name == "__init__.py":
        docstring = f'"""The harness {name}: what inspan calls, in the order of a session."""'
        text = MODULE_DOCSTRING.sub(docstring, text)
        text = SUMMARY.sub(f'summary="{name}: runs the shell commands that the model asks for."', text)
    return re.sub(r"\becho\b", name, text)
