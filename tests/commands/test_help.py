"""``--help`` of the commands that Hydra composes, on a terminal of 80 columns."""

import re

import pytest
from conftest import Here

from dml.commands.arguments import split_help
from dml.commands.command_help import format_help
from dml.run.config_folders import CONF

COMMANDS = ["train", "evaluate", "prepare", "inspect"]


@pytest.mark.parametrize("program", ["python train.py", "python evaluate.py", *(f"dml {name}" for name in COMMANDS)])
def test_help_has_usage_examples_and_a_line_for_each_key(program: str) -> None:
    command = program.removeprefix("python ").removeprefix("dml ").removesuffix(".py")
    printed = format_help(command, program, [], shows_all=False)
    assert printed.startswith(f"usage: {program} ")
    assert len(re.findall(r"^  (python|dml) \w+", printed, flags=re.MULTILINE)) == 5
    lines = printed.partition("with their defaults:\n")[2].partition("\n\n")[0].splitlines()
    assert {"dataset", "dataset.root"} < {line.split("=")[0].strip() for line in lines}
    assert all(re.fullmatch(r"  [\w.]+=\S+ +\w.*", line) for line in lines)
    assert max(map(len, printed.splitlines())) <= 80
    assert len(lines) == 20 or command != "train"


@pytest.mark.parametrize("group", ["dataset", "sampler", "transform", "optimizer", "trainer", "model"])
def test_the_lines_are_those_of_the_choices(group: str) -> None:
    for file in (CONF / group).glob("*.yaml"):
        printed = format_help("train", "dml train", [f"{group}={file.stem}"], shows_all=False)
        assert f"  {group}={file.stem} " in printed or group not in ("dataset", "model")
        assert max(map(len, printed.splitlines())) <= 80
        assert not re.search(r"^  [\w.]+=\S+ *$", printed, flags=re.MULTILINE), "a key without a word on it"


def test_help_is_printed_and_nothing_is_run(here: Here, capfd: pytest.CaptureFixture[str]) -> None:
    here("train", "loss=nra", "-h")
    assert "  loss=nra " in capfd.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["--help", "all"], ["--help"]), (["-h", "all", "a=b"], ["-h", "a=b"]), (["--help=all"], ["--help"])],
)
def test_all_is_asked_for_by_one_word(arguments: list[str], words: list[str]) -> None:
    assert split_help(arguments) == (words, True)
    assert split_help([words[0], "loss=all"]) == ([words[0], "loss=all"], False)
