"""The command ``dml embed``."""

import argparse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from dml.commands.command_parser import CommandParser, embedding_options, load_for_many_images
from dml.commands.error_lines import print_line
from dml.runtime.files import absolute_path, expand_home
from dml.runtime.text import printable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dml.inference import ImageEmbedder

DESCRIPTION = """\
Embed images with a trained model, and write their vectors to a file: a
.parquet file with the columns path, label and vector, and the model's
fingerprint in its metadata; or a .npz file with the arrays paths, labels and
vectors, and the fingerprint. The file is there when it is whole."""

EXAMPLES = {
    "dml embed outputs/RUN photos --output photos.parquet": "embeds all images in the folder photos",
    "dml embed my_model list.csv --output photos.npz": "the images that a .csv file lists",
    "dml embed my_model photos --output photos.parquet --ray": "on a Ray cluster",
}


def embed_images(arguments: Sequence[str]) -> None:
    """Embed the images that the arguments of ``dml embed`` name, and print the path of the file."""
    parser = CommandParser("embed", DESCRIPTION, EXAMPLES)
    parser.add_model()
    parser.add_argument("images", metavar="IMAGES", help="folder of images, .csv file of images, or one image")
    file = "file to write or replace: .parquet or .npz"
    parser.add_argument("--output", type=expand_home, required=True, metavar="FILE", help=file)
    cluster = "embed on the Ray cluster that RAY_ADDRESS names, or on all CPUs or GPUs of this machine"
    parser.add_argument("--ray", action="store_true", help=cluster)
    root = "folder that the written paths are relative to, which is written"
    parser.add_argument("--root", metavar="FOLDER", help=root)
    parser.add_embedding()
    options = parser.parse(arguments)
    from dml.inference.embedding_files import check_names, check_output, make_tables, name_images, write_embeddings
    from dml.inference.image_inputs import list_source
    from dml.runtime.errors import check_installed

    check_output(options.output)
    if options.ray:
        check_installed("ray", "pandas", extra="ray")
    paths, labels = list_source(options.images)
    place = {"root": absolute_path(expand_home(options.root))} if options.root else {}
    names = name_images(paths, place.get("root"))
    check_names(names, labels)
    model = load_for_many_images(options)
    facts = {"fingerprint": model.fingerprint, **place}
    tables = make_tables(names, labels, _embed(options, model, paths))
    write_embeddings(options.output, tables, facts, len(paths))
    print_line(printable(options.output))


def _embed(
    options: argparse.Namespace, model: "ImageEmbedder", paths: Sequence[str]
) -> "Iterator[NDArray[np.float32]]":
    """Yield the vectors (n, D) of the images, block by block."""
    arguments = embedding_options(options)
    if not options.ray:
        return (vectors for _, vectors in model.embed_in_batches(paths, **arguments))
    from dml.inference.ray_embedding import embed_on_ray

    arguments["batch_size"] = options.batch_size or model.settings.batch_size
    load_arguments = {"device": options.device, "trust": options.trust}
    return embed_on_ray(options.model, load_arguments, model.fingerprint, paths, arguments)
