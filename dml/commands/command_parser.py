"""The arguments of the commands that Hydra doesn't compose."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from dml.runtime.imports import import_from_working_folder, quick_imports
from dml.runtime.text import printable

if TYPE_CHECKING:
    from dml.inference import ImageEmbedder


class CommandParser(argparse.ArgumentParser):
    """A parser of a command's arguments; a mistake ends with one line and exit code 2.

    The examples, {command line: what it does}, are shown below the list of arguments.
    """

    def __init__(self, command: str, description: str, examples: Mapping[str, str]) -> None:
        lines = [f"  {line}\n      {meaning}" for line, meaning in examples.items()]
        super().__init__(
            prog=f"dml {command}",
            description=description,
            epilog="\n".join(["examples:", *lines]),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def add_model(self, alternative: str = "") -> None:
        """Add the argument that `dml.load` takes."""
        place = "folder of a run or of a saved model, a checkpoint, USER/REPOSITORY of the hub, or pretrained:NAME"
        self.add_argument("model", metavar="MODEL", help=place + alternative)

    def add_number(self, *options: str, default: int | None, meaning: str) -> None:
        """Add an option that is a whole number above 0."""
        shown = "" if default is None else " (default: %(default)s)"
        self.add_argument(*options, type=positive_number, default=default, metavar="N", help=meaning + shown)

    def add_device(self) -> None:
        """Add the option that chooses where a model embeds."""
        self.add_argument("--device", default="auto", help="device that embeds (default: a GPU if there is one)")

    def add_trust(self) -> None:
        """Add the option of the commands that open a trained model, which may be built of a user's own classes."""
        self.add_argument("--trust", action="store_true", help="run code of the model's file that dml doesn't know")

    def add_embedding(self) -> None:
        """Add the options of the commands that embed many images; `embedding_options` reads them."""
        self.add_device()
        self.add_number("--batch-size", default=None, meaning="images in the network at a time (default: as tested)")
        self.add_argument(
            "--workers", type=int, default=1, metavar="N", help="processes that decode images (default: 1)"
        )
        self.add_argument(
            "--on-corrupt",
            choices=("raise", "skip"),
            default="raise",
            help="whether an unreadable image ends the command or is left out with a warning (default: raise)",
        )
        self.add_trust()

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse the arguments; with ``--trust`` the model's classes may be modules in the working folder."""
        options = self.parse_args(arguments)
        if getattr(options, "trust", False):
            import_from_working_folder()
        return options

    def error(self, message: str) -> NoReturn:
        """Print one line on stderr, and exit with code 2."""
        sys.stderr.write(f"error: {printable(message.removeprefix('argument '))}; {self.prog} --help lists all\n")
        sys.exit(2)


def positive_number(text: str) -> int:
    """Read an argument that is a whole number above 0."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number above 0")
    return int(text)


def embedding_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of `dml.inference.ImageEmbedder.embed` that the options of `add_embedding` give."""
    return {"batch_size": options.batch_size, "num_workers": options.workers, "on_corrupt": options.on_corrupt}


def load_for_many_images(options: argparse.Namespace) -> "ImageEmbedder":
    """Open the model that the options name as `dml.load` does, and keep the memory of each batch for the next one."""
    with quick_imports():
        from dml.inference import load
        from dml.runtime.processes import keep_freed_memory

    model = load(options.model, device=options.device, trust=options.trust)
    keep_freed_memory(model.device)
    return model
