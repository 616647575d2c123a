"""What ``--help`` prints: usage, examples and the keys that most people set, out of the comments in ``conf/``."""

import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from dml.run.config_folders import CONF, GROUPS, format_value

ORDER = ("dataset", "model", "loss", "transform", "sampler", "optimizer", "scheduler", "evaluation", "trainer")
"""The groups that most users choose from, in the order in which they meet them; the others follow by name."""
EXPERIMENT = "experiment"
SHOWN = "--help shows "
"""The beginning of the lines at the top of a command's file that name the keys which most people set."""
WIDTH, KEY_WIDTH = 80, 36
SHORT = """\
usage: {program} [GROUP=CHOICE ...] [KEY=VALUE ...]

{description}

examples:
{examples}

choices and values, with their defaults:
{keys}

{program} --help all lists all choices and keys; with --cfg job it
prints the values of a command line. The files in conf/ explain each key.
"""


def format_help(command: str, program: str, arguments: Sequence[str], *, shows_all: bool) -> str:
    """Format the text of ``--help``, with the choices and values of the other arguments.

    ``program`` is the beginning of the command line, such as "dml train".
    """
    overrides = [argument for argument in arguments if "=" in argument and argument[:1] != "-"]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose(command, overrides=overrides, return_hydra_config=True)
    return _list_all(config) if shows_all else _list_most(command, program, config)


def _list_all(config: DictConfig) -> str:
    """Return the choices of each group, those of every run first and the papers' experiments last, and all values."""
    choices: dict[str, list[str]] = {group: [] for group in ORDER}
    for file in sorted(CONF.rglob("*/*.yaml"), key=lambda file: (EXPERIMENT in file.parts, file)):
        choices.setdefault(file.parent.relative_to(CONF).as_posix(), []).append(file.stem)
    groups = "\n".join(
        textwrap.fill(f"{group}: {', '.join(names)}", WIDTH, subsequent_indent="  ", break_on_hyphens=False)
        for group, names in choices.items()
        if not group.endswith("/settings")  # parts of experiments
    )
    values = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
    return f"GROUP=CHOICE:\n\n{groups}\n\nKEY=VALUE:\n\n{OmegaConf.to_yaml(values)}"


def _list_most(command: str, program: str, config: DictConfig) -> str:
    file = CONF / f"{command}.yaml"
    header = [line.removeprefix("# ") for line in file.read_text(encoding="utf-8").split("\ndefaults:")[0].splitlines()]
    first = next(number for number, line in enumerate(header) if line.startswith("dml "))
    examples = [line for line in header[first:] if line.startswith(("dml ", "    "))]
    keys = " ".join(line.removeprefix(SHOWN) for line in header if line.startswith(SHOWN)).split()
    comments = _read_comments(file)
    return SHORT.format(
        program=program,
        description=textwrap.fill(" ".join(header[:first]), WIDTH),
        examples="\n".join(f"  {line.replace(f'dml {command}', program)}" for line in examples),
        keys="\n".join(line for key in keys if (line := _describe_key(key, config, comments))),
    )


def _describe_key(key: str, config: DictConfig, comments: dict[str, str]) -> str | None:
    """Return a line about a key: its default, and as much of its comment as fits; None if the choices lack it."""
    choices = config.hydra.runtime.choices
    group, _, rest = key.partition(".")
    if rest and group in GROUPS:
        text = _read_comments(CONF / group / f"{choices[group]}.yaml").get(rest)
    else:
        text = comments[f"defaults.{group}" if group in GROUPS else key]
    if text is None:
        return None  # another choice has the key
    if group == "hydra" or OmegaConf.is_missing(config, key):
        default = "..."
    else:
        value: Any = choices[key] if key in GROUPS else OmegaConf.select(config, key)
        plain = OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
        default = plain if isinstance(plain, str) else format_value(plain)
    start = f"  {key}={default}".ljust(KEY_WIDTH)
    if not start.endswith(" "):
        start = f"  {key}=[...]".ljust(KEY_WIDTH)
    for mark in ("; ", ". ", " (", ", ", ": "):
        if len(start + text) > WIDTH:
            text = text.partition(mark)[0]
    return start + text


def _read_comments(file: Path) -> dict[str, str]:
    """Read the comment behind each value in a YAML file, or above it -> {dotted key: comment}.

    The comments of the files that it begins with, such as ``defaults: [train]``, are among them; none if there is no
    file, as for a user's own choice.
    """
    comments: dict[str, str] = {}
    above: list[str] = []
    parents: list[tuple[int, str]] = []
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else []:
        if match := re.fullmatch(r"( *)(?:- )?([\w/]+):(.*)", line):
            depth, key, rest = len(match[1]), match[2], match[3]
            parents = [(outer, name) for outer, name in parents if outer < depth] + [(depth, key)]
            before = above if comments else []  # the file's own comment stands above its first key
            comments[".".join(name for _, name in parents)] = " ".join([*before, rest.partition(" # ")[2]]).strip()
        elif base := re.fullmatch(r" +- (\w+)", line):
            comments = _read_comments(file.with_name(f"{base[1]}.yaml")) | comments
        above = [*above, line.strip("# ")] if line.lstrip().startswith("#") else []
    return comments
