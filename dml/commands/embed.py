"""The command ``dml embed``."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dml.commands.command_parser import CommandParser, add_embedding_options, embedding_options, load_for_many_images
from dml.commands.error_lines import one_line_errors, print_line
from dml.runtime.errors import InputError
from dml.runtime.paths import absolute_path, expand_home
from dml.runtime.signals import continuing
from dml.runtime.text import printable

if TYPE_CHECKING:
    from dml.inference import ImageEmbedder
    from dml.inference.embedding_files import EmbeddingParts, Shard

DESCRIPTION = """\
Embed images with a trained model, and write their vectors to a file: a
.parquet file with the columns path, label and vector, and the model's
fingerprint in its metadata; or a .npz file with the arrays paths, labels and
vectors, and the fingerprint. Until all images are embedded, the vectors are in
a folder beside it, FILE.parts. If the command is interrupted, the same command
goes on with this folder."""

EXAMPLES = {
    "dml embed outputs/RUN photos --output photos.parquet": "embeds all images in the folder photos",
    "dml embed my_model list.csv --output photos.npz": "the images that a .csv file lists",
    "dml embed my_model photos --output photos.parquet --shard 2/4": "every fourth part of the images",
    "dml embed my_model photos --output photos.parquet --ray": "on a Ray cluster",
}


def embed_images(arguments: Sequence[str]) -> None:
    """Embed the images that the arguments of ``dml embed`` name, and print the path of the file."""
    parser = CommandParser("embed", DESCRIPTION, EXAMPLES)
    parser.add_model()
    parser.add_argument("images", metavar="IMAGES", help="folder of images, .csv file of images, or one image")
    parser.add_argument(
        "--output", type=expand_home, required=True, metavar="FILE", help="file to write or replace: .parquet or .npz"
    )
    parser.add_argument(
        "--shard",
        metavar="I/N",
        default="",
        help="embed only every N-th part, from the I-th on; the command without --shard joins the parts of all",
    )
    parser.add_argument(
        "--ray",
        action="store_true",
        help="embed on the Ray cluster that RAY_ADDRESS names, or on all CPUs or GPUs of this machine",
    )
    parser.add_argument(
        "--root", metavar="FOLDER", help="folder that the written paths are relative to, which is written"
    )
    add_embedding_options(parser)
    options = parser.parse_args(arguments)
    with continuing(), one_line_errors():
        from dml.inference.embedding_files import WHOLE, Shard, check_output
        from dml.runtime.errors import check_installed

        check_output(options.output)
        if options.ray:
            check_installed("ray", "pandas", extra="ray")
            if options.shard:
                raise InputError("--ray: not with --shard; Ray shares the parts out by itself")
        shard = Shard.parse(options.shard) if options.shard else WHOLE
        model, parts = _prepare(options)
        with parts.hold(shard):
            _embed(options, model, parts, shard)
            if not options.shard:
                parts.join(may_lack_images=options.on_corrupt == "skip")
        print_line(_describe_parts(parts) if options.shard else printable(options.output))


def _prepare(options: argparse.Namespace) -> "tuple[ImageEmbedder, EmbeddingParts]":
    """List the images and open the model, which takes seconds to import."""
    from dml.inference.embedding_files import EmbeddingParts
    from dml.inference.image_inputs import list_source

    paths, labels = list_source(options.images)
    model = load_for_many_images(options.model, options.device, trust=options.trust)
    facts = {"fingerprint": model.fingerprint, "geometry": model.geometry}
    if options.root:
        facts["root"] = absolute_path(expand_home(options.root))
    batch_size = options.batch_size or model.settings.batch_size
    return model, EmbeddingParts(options.output, paths, labels, facts, batch_size)


def _embed(options: argparse.Namespace, model: "ImageEmbedder", parts: "EmbeddingParts", shard: "Shard") -> None:
    from dml.inference.embedding_files import WHOLE, embed_parts

    missing = parts.missing(shard)
    if len(missing) < len(shard.choose(len(parts))):
        done = len(parts) - len(parts.missing(WHOLE))
        print_line(f"{printable(parts.folder)}: goes on, {done} of {len(parts)} parts are there")
    if missing and options.ray:
        from dml.inference.ray_embedding import embed_parts_on_ray

        load_arguments = {"device": options.device, "trust": options.trust}
        embed_parts_on_ray(options.model, load_arguments, parts, missing, embedding_options(options))
    elif missing:
        embed_parts(model, parts, missing, embedding_options(options))


def _describe_parts(parts: "EmbeddingParts") -> str:
    """Return the line about the parts of all shards; none is missing if the others are done, on the same disk."""
    from dml.inference.embedding_files import WHOLE

    missing = len(parts.missing(WHOLE))
    wait = "" if not missing else "when the other shards are done, "
    return (
        f"{printable(parts.folder)}: {len(parts) - missing} of {len(parts)} parts are there; {wait}the same command "
        "without --shard joins them"
    )
