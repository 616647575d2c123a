"""The arguments of the commands that Hydra doesn't compose."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from dml.commands.start import import_from_working_folder
from dml.runtime.errors import suggest
from dml.runtime.text import printable

if TYPE_CHECKING:
    from dml.inference import ImageEmbedder


class CommandParser(argparse.ArgumentParser):
    """A parser of a command's arguments; a mistake ends with one line and exit code 2.

    Args:
        command: name of the command, such as "report".
        description: sentences on what the command does.
        examples: {command line: what it does}, shown below the list of arguments.
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

    def add_number(self, option: str, default: int, meaning: str) -> None:
        """Add an option that is a whole number above 0."""
        self.add_argument(
            option, type=positive_number, default=default, metavar="N", help=f"{meaning} (default: %(default)s)"
        )

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """Parse the arguments; the line about an unknown option names the nearest ones."""
        return self._check(*self.parse_known_args(args, namespace))

    def parse_intermixed_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """Parse arguments of which those without a name may stand between options."""
        return self._check(*self.parse_known_intermixed_args(args, namespace))

    def _check(self, options: argparse.Namespace, unknown: Sequence[str]) -> argparse.Namespace:
        if unknown:
            option = unknown[0].partition("=")[0]
            advice = suggest(option, self._option_string_actions) if option.startswith("-") else ""
            self.error(f"{unknown[0]}: no such argument{advice}")
        if getattr(options, "trust", False):
            import_from_working_folder()
        return options

    def error(self, message: str) -> NoReturn:
        """Print one line on stderr, and exit with code 2."""
        sys.stderr.write(f"error: {printable(message.removeprefix('argument '))}; {self.prog} --help lists all\n")
        sys.exit(2)


def add_embedding_options(parser: CommandParser) -> None:
    """Add the options of the commands that embed images."""
    parser.add_argument("--device", default="auto", help="device that embeds (default: a GPU if there is one)")
    parser.add_argument(
        "--batch-size", type=positive_number, metavar="N", help="images in the network at a time (default: as tested)"
    )
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="processes that decode images (default: 1)")
    parser.add_argument(
        "--on-corrupt",
        choices=("raise", "skip"),
        default="raise",
        help="whether an unreadable image ends the command or is left out with a warning (default: raise)",
    )
    add_trust(parser)


def add_trust(parser: CommandParser) -> None:
    """Add the option of the commands that open a trained model, which may be built of a user's own classes."""
    parser.add_argument("--trust", action="store_true", help="run code of the model's file that dml doesn't know")


def embedding_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of `dml.inference.ImageEmbedder.embed` that the options of `add_embedding_options` give."""
    return {
        "batch_size": options.batch_size,
        "num_workers": options.workers,
        "on_corrupt": options.on_corrupt,
    }


def positive_number(text: str) -> int:
    """Read an argument that is a whole number above 0."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number above 0")
    return int(text)


def load_for_many_images(place: str, device: str, *, trust: bool = False) -> "ImageEmbedder":
    """Open a model as `dml.inference.load` does, and keep the memory of each batch for the next one.

    Raises:
        InputError: if there is no such model.
    """
    from dml.inference import load  # these take seconds
    from dml.ops.freed_memory import keep_freed_memory

    model = load(place, device=device, trust=trust)
    keep_freed_memory(model.device)
    return model
