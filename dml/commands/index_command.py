"""The command ``dml index``."""

from collections.abc import Sequence

from dml.commands.command_parser import CommandParser, add_embedding_options, embedding_options
from dml.commands.error_lines import one_line_errors, say
from dml.ops.escaping import printable

DESCRIPTION = """\
Embed images with a trained model, and write an index of them, in which
dml search finds the most similar ones. The index holds the model, so its
folder can be moved anywhere; it holds the paths of the images, not the images.
A finished index is extended by dml index INDEX IMAGES: images that it holds
already, by their paths, are embedded again."""

EXAMPLES = {
    "dml index outputs/RUN photos --output my_index": "makes an index of all images in the folder photos",
    "dml index my_index more_photos": "adds images to it",
    "dml index my_model list.csv --output big --factory IVF1024,Flat": "an approximate index, for many images",
}


def index_images(arguments: Sequence[str]) -> None:
    """Make or extend the index that the arguments of ``dml index`` describe, and print its folder."""
    parser = CommandParser("index", DESCRIPTION, EXAMPLES)
    parser.add_argument(
        "model", metavar="MODEL", help="folder of a run or of a saved model, a checkpoint, or an index to extend"
    )
    parser.add_argument("images", metavar="IMAGES", help="folder of images, .csv file of images, or one image")
    parser.add_argument("--output", metavar="FOLDER", help="folder of the index (default: the index that is extended)")
    parser.add_argument("--factory", metavar="KIND", default="Flat", help="kind of a new index (default: Flat, exact)")
    parser.add_argument("--parameters", default="", help="search parameters of an approximate index, such as nprobe=32")
    add_embedding_options(parser)
    options = parser.parse_args(arguments)
    with one_line_errors():
        from dml.inference import Index, load  # after --help: it takes seconds
        from dml.inference.image_index import is_index
        from dml.inference.index_items import list_source
        from dml.ops.errors import InputError

        embedding = {"progress": True, **embedding_options(options)}
        if is_index(options.model):
            index = Index.load(options.model, device=options.device)
            count = index.upsert(options.images, **embedding)
        else:
            if options.output is None:
                raise InputError("--output FOLDER: the folder of the index is missing")
            list_source(options.images)  # before the model is loaded: mistakes are told at once
            index = Index.build(
                load(options.model, device=options.device),
                options.images,
                factory=options.factory,
                parameters=options.parameters,
                **embedding,
            )
            count = len(index)
        folder = options.output or options.model
        index.save(folder)
        say(f"{printable(folder)}: {count:,} images embedded, {len(index):,} in the index")
