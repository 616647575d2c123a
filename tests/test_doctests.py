"""Run the examples in the docstrings, and check that the public names of the packages have one."""

import doctest
from importlib import import_module

import pytest
from conftest import ROOT

MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in sorted((ROOT / "dml").rglob("*.py"))
    if "    >>> " in path.read_text(encoding="utf-8")
]
PACKAGES = ["losses", "metrics", "models", "retrieval", "samplers"]
INTERFACES = {"EpochSampler", "TwoStepHead"}
"""Public classes that are only used through their subclasses."""


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_print_what_they_state(name: str) -> None:
    lines: list[str] = []
    runner = doctest.DocTestRunner()
    for example in doctest.DocTestFinder().find(import_module(name)):
        runner.run(example, out=lines.append)
    assert runner.summarize(verbose=False).attempted
    assert not lines, "".join(lines)


@pytest.mark.parametrize("package", PACKAGES)
def test_public_names_have_an_example(package: str) -> None:
    offered = import_module(f"dml.{package}")
    assert [name for name in offered.__all__ if ">>> " not in getattr(offered, name).__doc__] == [
        name for name in offered.__all__ if name in INTERFACES
    ]
