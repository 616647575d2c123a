"""The command ``dml``, also ``python -m dml``: ``dml train loss=rll`` does what ``python train.py loss=rll`` does."""

import sys
from collections.abc import Sequence
from importlib import import_module

from dml import __version__
from dml.runtime.signals import handle_signals

JOB = "dml.commands.hydra_command:main"
"""The function of the commands whose arguments Hydra composes."""

COMMANDS = {
    "train": (JOB, "train a model, test it, and write its report"),
    "evaluate": (JOB, "test a checkpoint again, also on another data set"),
    "prepare": (JOB, "check a data set, and keep its images decoded"),
    "inspect": (JOB, "show what a data set holds, and what networks find"),
    "compare": ("dml.commands.compare:compare_runs", "print a table of finished runs"),
    "embed": ("dml.commands.embed:embed_images", "write the vectors of images to a file"),
    "index": ("dml.commands.index:index_images", "make an index of images, or extend one"),
    "upgrade": ("dml.commands.upgrade:upgrade", "give an index a better model, and keep it searchable"),
    "search": ("dml.commands.search:search_images", "find the images that are most similar to one"),
    "export": ("dml.commands.export:export_model", "write a model as ONNX or as a torch.export file"),
    "serve": ("dml.commands.serve:serve_index", "show an index as a page to search in a browser"),
    "study": ("dml.studies.study_command:run_study", "reproduce the papers' tables, and compare losses"),
}
"""The function of each command, whose module is imported when it is run, and the line about it in ``dml --help``."""

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

    A script that has one command only puts its name before the arguments of the command line.
    """
    handle_signals()  # before a command's imports, which take seconds
    dispatch([*leading_arguments, *sys.argv[1:]])


def dispatch(arguments: Sequence[str]) -> None:
    """Run the command that the first argument names, with those behind it; nothing or ``--help`` lists the commands."""
    name = arguments[0] if arguments else "--help"
    if "--version" in arguments[:2]:
        sys.stdout.write(f"dml {__version__}\n")
    elif name in ("-h", "--help"):
        sys.stdout.write(format_help())
    elif name in COMMANDS:
        module, _, function = COMMANDS[name][0].partition(":")
        run = getattr(import_module(module), function)
        if COMMANDS[name][0] == JOB:  # one function runs all jobs, and tells of errors
            run(name, arguments[1:])
            return
        from dml.commands.error_lines import one_line_errors

        with one_line_errors():
            run(arguments[1:])
    else:
        from dml.runtime.errors import suggest
        from dml.runtime.text import printable

        sys.stderr.write(f"error: {printable(name)}: no such command{suggest(name, COMMANDS)}; dml --help lists all\n")
        sys.exit(2)


def format_help() -> str:
    """Format what ``dml --help`` prints: every command with its summary, and examples."""
    width = max(map(len, COMMANDS))
    return HELP.format(commands="\n".join(f"  {name:{width}}  {summary}" for name, (_, summary) in COMMANDS.items()))


if __name__ == "__main__":
    run_command()
