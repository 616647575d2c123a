"""The command ``dml label``."""

import argparse
from collections.abc import Sequence
from concurrent.futures import TimeoutError as StillRunning
from contextlib import suppress

from dml.commands.command_parser import CommandParser, add_embedding_options, embedding_options, load_for_many_images
from dml.commands.error_lines import one_line_errors, print_line
from dml.commands.serve import add_address, list_hosts, list_pages
from dml.runtime.errors import InputError, check_installed
from dml.runtime.paths import expand_home
from dml.runtime.text import format_count, printable

DESCRIPTION = """\
Ask about pairs of images on a page in the browser: same or not? Each question
is the one whose answer settles most; keys answer it: y same, n not, s skip,
u undo. All images of which the answers tell the class are written to a .csv
file with the columns path and label, which dataset=csv reads. Every answer is
on the disk, in FILE.answers.jsonl, before the next question: the same command
goes on, also with another model."""

EXAMPLES = {
    "dml label photos --output labels.csv": "the page is at http://127.0.0.1:8000, until Ctrl-C",
    "dml label photos --output labels.csv --model outputs/RUN": "goes on with a trained model",
}


def label_images(arguments: Sequence[str]) -> None:
    """Serve the page of questions about the images that the arguments of ``dml label`` name, until a signal ends it."""
    parser = CommandParser("label", DESCRIPTION, EXAMPLES)
    parser.add_argument("images", metavar="IMAGES", help="folder of images, or list of them (.csv, .txt)")
    parser.add_argument("--output", type=expand_home, required=True, metavar="FILE", help=".csv file of the labels")
    parser.add_argument(
        "--model",
        default="pretrained:tf_efficientnet_lite0",
        metavar="MODEL",
        help="run, saved model or checkpoint, or pretrained:NAME (default: %(default)s)",
    )
    add_address(parser)
    add_embedding_options(parser)
    options = parser.parse_args(arguments)
    with one_line_errors():
        check_installed("fastapi", "uvicorn", extra="serve")
        from dml.runtime.locks import holding

        if options.output.suffix.lower() != ".csv":
            raise InputError(f"--output {printable(options.output)}: must end in .csv")
        options.output.parent.mkdir(parents=True, exist_ok=True)
        name = f"--output {printable(options.output)}"
        with holding(options.output.with_name(f".{options.output.name}.lock"), name=name, does="is asking about it"):
            _serve_questions(options)


def _serve_questions(options: argparse.Namespace) -> None:
    import numpy as np

    from dml.inference.image_inputs import list_source
    from dml.inference.labeling import Labeling
    from dml.inference.serving.http_server import open_listener, running_server
    from dml.inference.serving.label_page import create_label_app

    hosts = list_hosts(options.host, options.allow_host)
    paths, _ = list_source(options.images)
    with open_listener(options.host, options.port) as listener:
        model = load_for_many_images(options.model, options.device, trust=options.trust)
        features = model.embed(paths, progress=True, **embedding_options(options))
        rows = np.flatnonzero(np.isfinite(features).all(axis=1))
        if len(rows) < 2:
            count = format_count(len(rows), "image")
            raise InputError(f"{printable(options.images)}: {count} can be read; a question needs two")
        labeling = Labeling(options.output, [paths[row] for row in rows], features[rows])
        page_hosts, pages = list_pages(listener, options.allow_host)
        try:
            with running_server(create_label_app(labeling, [*hosts, *page_hosts]), listener) as server:
                print_line(f"{printable(options.output)}: questions at {pages}; Ctrl-C ends it")
                while not server.done():
                    labeling.write_labels()
                    with suppress(StillRunning):
                        server.result(timeout=1)
        finally:
            labeling.write_labels()
