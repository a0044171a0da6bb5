"""What a package says that it exports is what it exports."""

import ast
import importlib
from types import ModuleType

import pytest


def declared(modules):
    """Every module with an ``__all__``."""
    for name, (dotted, tree) in sorted(modules.items()):
        for node in tree.body:
            targets = node.targets if isinstance(node, ast.Assign) else []
            if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
                yield name, dotted


def public_names(module):
    """What one gets without an underscore, besides modules and what `from __future__` leaves behind."""
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and not isinstance(value, ModuleType) and name != "annotations"
    }


def test_the_packages_that_people_import_declare_their_exports(modules):
    assert {dotted for _, dotted in declared(modules)} >= {"inspan_core", "inspan_supervisor", "inspan_echo"}


def test_every_declared_name_exists_once(modules):
    for _, dotted in declared(modules):
        module = importlib.import_module(dotted)
        assert len(set(module.__all__)) == len(module.__all__), dotted
        assert [name for name in module.__all__ if not hasattr(module, name)] == [], dotted


@pytest.mark.parametrize("package", ["inspan_core", "inspan_supervisor"])
def test_a_package_of_re_exports_exports_nothing_else(package):
    module = importlib.import_module(package)
    surplus = public_names(module) - set(module.__all__)
    assert {name for name in surplus if not name_is_of_the_standard_library(module, name)} == set()


def name_is_of_the_standard_library(module, name):
    origin = getattr(getattr(module, name), "__module__", "") or ""
    return not origin.startswith("inspan_")
