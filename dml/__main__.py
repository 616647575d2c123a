"""The command ``dml``, also ``python -m dml``: ``dml train loss=rll`` does what ``python train.py loss=rll`` does."""

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple

from dml import __version__
from dml.runtime.signals import handle_signals


class Command(NamedTuple):
    """A command of ``dml``.

    Args:
        module: name of the module with the command's function, which is imported when the command is run.
        function: name of the function, which takes the arguments that follow the command's name.
        summary: description of the command, one line of ``dml --help``.
    """

    module: str
    function: str
    summary: str


JOB = "dml.commands.hydra_command"
"""The module of the commands whose arguments Hydra composes."""
ROOM = "dml.commands"

COMMANDS = {
    "train": Command(JOB, "main", "train a model, test it, and write its report"),
    "evaluate": Command(JOB, "main", "test a checkpoint again, also on another data set"),
    "prepare": Command(JOB, "main", "check a data set, and keep its images decoded"),
    "inspect": Command(JOB, "main", "show what a data set holds, and what networks find"),
    "compare": Command(f"{ROOM}.compare", "compare_runs", "print a table of finished runs"),
    "embed": Command(f"{ROOM}.embed", "embed_images", "write the vectors of images to a file"),
    "index": Command(f"{ROOM}.index", "index_images", "make an index of images, or extend one"),
    "upgrade": Command(f"{ROOM}.upgrade", "upgrade", "give an index a better model, and keep it searchable"),
    "search": Command(f"{ROOM}.search", "search_images", "find the images that are most similar to one"),
    "export": Command(f"{ROOM}.export", "export_model", "write a model as ONNX or as a torch.export file"),
    "serve": Command(f"{ROOM}.serve", "serve_index", "show an index as a page to search in a browser"),
    "study": Command("dml.studies.study_command", "run_study", "reproduce the papers' tables, and compare losses"),
}

HELP = """\
usage: dml COMMAND ...

Train, test, compare and use networks for image retrieval.

{commands}

dml COMMAND --help lists what a command takes. For example:
  dml train             trains on drawings that come with dml, in a few minutes
  dml train dataset=folder dataset.root=photos
  dml compare outputs   prints a table of the finished runs below outputs
  dml index outputs/RUN photos --output my_index
  dml search my_index query.jpg
"""


def run_command(*leading_arguments: str) -> None:
    """Run the command that the command line names; Ctrl-C ends it with one line and no trace from now on.

    Args:
        leading_arguments: arguments to put before those of the command line: the command's name in a script that has
            one command only.
    """
    handle_signals()  # before a command's imports, which take seconds
    dispatch([*leading_arguments, *sys.argv[1:]])


def dispatch(arguments: Sequence[str]) -> None:
    """Run the command that the first argument names; an unknown name ends with one line and exit code 2.

    Args:
        arguments: name of the command and its arguments; ``--help`` or nothing lists the commands, and ``--version``
            prints the version.
    """
    name = arguments[0] if arguments else "--help"
    if "--version" in arguments[:2]:
        sys.stdout.write(f"dml {__version__}\n")
    elif name in ("-h", "--help"):
        sys.stdout.write(format_help())
    elif name in COMMANDS:
        command = COMMANDS[name]
        leading = [name] if command.module == JOB else []  # one function runs all jobs
        getattr(import_module(command.module), command.function)(*leading, arguments[1:])
    else:
        from dml.runtime.errors import suggest
        from dml.runtime.text import printable

        sys.stderr.write(f"error: {printable(name)}: no such command{suggest(name, COMMANDS)}; dml --help lists all\n")
        sys.exit(2)


def format_help() -> str:
    """Format what ``dml --help`` prints: every command with its summary, and examples."""
    width = max(map(len, COMMANDS))
    return HELP.format(commands="\n".join(f"  {name:{width}}  {command.summary}" for name, command in COMMANDS.items()))


if __name__ == "__main__":
    run_command()
