"""The names that the packages offer, ``from dml.losses import RankedListLoss``, and the examples in docstrings."""

import ast
import doctest
from importlib import import_module
from pathlib import Path

import pytest
from conftest import ROOT

PACKAGES = ["losses", "metrics", "models", "retrieval", "samplers"]
INTERFACES = {"EpochSampler", "TwoStepHead"}
"""Public classes that are only used through their subclasses, and need no example."""
MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in sorted((ROOT / "dml").rglob("*.py"))
    if "    >>> " in path.read_text(encoding="utf-8")
]


def type_checked_names(package: str) -> dict[str, str]:
    """Read the names that a package's stub offers to type checkers: {name: module}."""
    source = Path(ROOT, "dml", package, "__init__.pyi").read_text(encoding="utf-8")
    imports = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
    return {str(alias.asname): f"dml.{package}.{node.module}" for node in imports for alias in node.names}


@pytest.mark.parametrize("package", PACKAGES)
def test_offers_sorted_names_as_type_checkers_see_them_each_with_an_example(package: str) -> None:
    offered, modules = import_module(f"dml.{package}"), type_checked_names(package)
    assert offered.__all__ == sorted(modules)
    assert {*modules} <= {*dir(offered)}  # where the API reference and tab completion look
    for name, module in modules.items():
        assert getattr(offered, name) is getattr(import_module(module), name)
        assert getattr(offered, name).__module__ == module
        assert (">>> " in getattr(offered, name).__doc__) == (name not in INTERFACES)


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_print_what_they_state(name: str) -> None:
    lines: list[str] = []
    runner = doctest.DocTestRunner()
    for example in doctest.DocTestFinder().find(import_module(name)):
        runner.run(example, out=lines.append)
    assert runner.summarize(verbose=False).attempted
    assert not lines, "".join(lines)
