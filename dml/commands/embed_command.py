"""The command ``dml embed``."""

from collections.abc import Sequence
from pathlib import Path

from dml.commands.command_parser import CommandParser, add_embedding_options, embedding_options
from dml.commands.error_lines import one_line_errors, say
from dml.ops.errors import InputError
from dml.ops.escaping import printable

DESCRIPTION = """\
Embed images with a trained model, and write their vectors to a file: a
.parquet file with the columns path, label and vector, and the model's
fingerprint in its metadata; or a .npz file with the arrays paths, labels and
vectors, and the fingerprint."""

EXAMPLES = {
    "dml embed outputs/RUN photos --output photos.parquet": "embeds all images in the folder photos",
    "dml embed my_model list.csv --output photos.npz": "the images that a .csv file lists",
}


def embed_images(arguments: Sequence[str]) -> None:
    """Embed the images that the arguments of ``dml embed`` name, and print the path of the file."""
    parser = CommandParser("embed", DESCRIPTION, EXAMPLES)
    parser.add_argument("model", metavar="MODEL", help="folder of a run or of a saved model, or a checkpoint")
    parser.add_argument("images", metavar="IMAGES", help="folder of images, .csv file of images, or one image")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="file to write: .parquet or .npz")
    add_embedding_options(parser)
    options = parser.parse_args(arguments)
    with one_line_errors():
        if options.output.suffix not in (".parquet", ".npz"):
            raise InputError(f"--output {printable(options.output)}: the name must end with .parquet or .npz")
        from dml.inference import load  # after --help: it takes seconds
        from dml.inference.embedding_files import write_embeddings
        from dml.inference.index_items import list_source

        paths, labels = list_source(options.images)
        model = load(options.model, device=options.device)
        vectors = model.embed(paths, progress=True, **embedding_options(options))
        write_embeddings(options.output, paths, labels, vectors, model)
        say(printable(options.output))
