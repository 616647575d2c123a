"""A library's refusal of an argument is one line; a failure deeper inside keeps its trace."""

import errno

import pytest
import torch
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import OmegaConf
from torch import nn

from dml.commands.error_lines import explain
from dml.commands.remedies import explain_grammar, suggest_keys


def explain_building(**node: object) -> str | None:
    """Return the line about an object that can't be built."""
    with pytest.raises(InstantiationException) as raised:
        instantiate(OmegaConf.create({"part": node}))
    return explain(raised.value)


def test_a_value_that_a_library_refuses_is_one_line() -> None:
    line = explain_building(_target_="fractions.Fraction", numerator="a")
    assert line == "part: fractions.Fraction: Invalid literal for Fraction: 'a'"


class WithoutSuper(nn.Module):
    def __init__(self) -> None:
        self.weight = nn.Parameter(torch.ones(1))


def test_a_module_whose_base_class_was_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("textwrap.WithoutSuper", WithoutSuper, raising=False)
    line = explain_building(_target_="textwrap.WithoutSuper")
    assert line is not None
    assert line.startswith("part: ")
    assert line.endswith("WithoutSuper.__init__ has to begin with super().__init__()")


@pytest.mark.parametrize(
    "node",
    [
        {"_target_": "statistics.median", "data": 3},  # a TypeError of sorted()
        {"_target_": "textwrap.wrap", "text": "word", "width": "a"},
        {"_target_": "fractions.Fraction", "numerator": 1, "denominator": 0},
        {"_target_": "json.loads", "s": "{"},  # raised by C code
    ],
)
def test_any_other_failure_is_a_bug(node: dict[str, object]) -> None:
    assert explain_building(**node) is None


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/proc/x", "/proc/x: no file can be made in /proc; choose another folder"),
        ("/sys/kernel/b.csv", "/sys/kernel/b.csv: no file can be made in /sys; choose another folder"),
        ("/proc/0/stat", None),  # of a process that has ended
        ("/home/x", None),  # a file that is missing is a bug
    ],
)
def test_a_folder_of_the_kernel_takes_no_files(path: str, expected: str | None) -> None:
    assert explain(FileNotFoundError(errno.ENOENT, "No such file or directory", path)) == expected


def test_keys_of_the_same_name_come_before_similar_ones() -> None:
    root = OmegaConf.create({"optimizer": {"lr": 1, "momentum": 0}, "hydra": {"lrs": 1}, "logger": {"a": "${b}"}})
    assert suggest_keys("lr", ["logger"], root) == "; is it optimizer.lr?"
    assert suggest_keys("momentun", ["logger"], root) == "; is it optimizer.momentum?"
    assert suggest_keys("loger", ["logger"], root) == "; nearest: logger"


def test_quotes_are_offered_for_texts_alone() -> None:
    assert explain_grammar("a.b=c d (", "no").endswith("""quote it twice: 'a.b="c d ("'""")
    line = explain_grammar("'dataset.root=mine'", "no viable alternative")
    assert line == "'dataset.root=mine': quotes around the whole argument; without them it is dataset.root=mine"
    assert explain_grammar("a=[1", "no viable alternative") == "a=[1: no viable alternative"
