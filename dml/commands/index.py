"""The command ``dml index``."""

import argparse
from collections.abc import Sequence
from typing import Any

from dml.commands.command_parser import CommandParser, embedding_options, load_for_many_images
from dml.commands.error_lines import print_line
from dml.runtime import signals
from dml.runtime.errors import InputError
from dml.runtime.files import expand_home
from dml.runtime.text import printable

DESCRIPTION = """\
Embed images with a trained model, and write an index of them, in which
dml search finds the most similar ones. The index holds the model, so its
folder can be moved anywhere; it holds the paths of the images, not the images.
A finished index is extended by dml index INDEX IMAGES: images that it holds
already, by their paths, are embedded again.
With --check, it measures the recall@10 of an index against exact search.
With --to, the vectors are uploaded to a vector database instead, into a
collection that is named after the model. Images that it holds already, by
their paths, are replaced, so the same command may be repeated. With --prune,
it ends by deleting what the folder of images, or else --root, lacks."""

EXAMPLES = {
    "dml index outputs/RUN photos --output my_index": "makes an index of all images in the folder photos",
    "dml index my_index more_photos": "adds images to it",
    "dml index my_model list.csv --output big --factory IVF1024,Flat": "an approximate index, for many images",
    "dml index my_index --check 1000 --recall 0.95": "chooses the fastest search parameters that find so much",
    "dml index my_model photos --to lancedb:vectors": "to LanceDB",
    "dml index my_model photos --to qdrant:http://db --root photos --prune": "makes Qdrant hold what the folder holds",
}


def index_images(arguments: Sequence[str]) -> None:
    """Make, extend, measure or upload the index that the arguments of ``dml index`` describe."""
    parser = CommandParser("index", DESCRIPTION, EXAMPLES)
    parser.add_model("; or an index to extend")
    parser.add_argument("images", metavar="IMAGES", nargs="?", help="folder of images, list of them, or one image")
    parser.add_argument("--output", metavar="FOLDER", help="folder of the index (default: the index that is extended)")
    parser.add_argument("--factory", metavar="KIND", help="kind of a new index (default: Flat, exact)")
    parser.add_argument("--parameters", help="search parameters of an approximate index, such as nprobe=32")
    parser.add_argument("--check", type=int, metavar="N", help="measure an index by N of its images, or N of IMAGES")
    parser.add_argument("--recall", type=float, metavar="R", help="recall to choose the search parameters by")
    place = "qdrant:, lancedb: or milvus: and its address, folder or file"
    parser.add_argument("--to", metavar="KIND:PLACE", help=f"database to upload to: {place}")
    parser.add_argument("--root", metavar="FOLDER", help="folder that the paths in the database are relative to")
    parser.add_argument(
        "--prune", action="store_true", default=None, help="delete images below the folder, or --root, that it lacks"
    )
    parser.add_embedding()
    options = parser.parse(arguments)
    if options.check is None and options.images is None:
        parser.error("the following arguments are required: IMAGES")
    if options.check is not None:
        _refuse(options, "not with --check", "output", "factory", "parameters", "to", "root", "prune")
        _check(options)
    elif options.to is not None:
        signals.state.hint = lambda: "the same command goes on"
        _refuse(options, "not with --to", "output", "factory", "parameters")
        _upload(options)
    else:
        _refuse(options, "only with --to", "root", "prune")
        _refuse(options, "only with --check", "recall")
        _write_index(options)


def _refuse(options: argparse.Namespace, reason: str, *names: str) -> None:
    for name in names:
        if getattr(options, name) is not None:
            raise InputError(f"--{name}: {reason}")


def _write_index(options: argparse.Namespace) -> None:
    from dml.inference import Index  # after --help: it takes seconds
    from dml.inference.image_inputs import list_source
    from dml.inference.index_folder import hold_folder, is_index
    from dml.retrieval.vector_index import EXACT
    from dml.runtime.processes import keep_freed_memory

    embedding = embedding_options(options) | {"progress": True}
    is_extended = is_index(options.model)
    if is_extended:
        _refuse(options, "not for an index to extend, which keeps its own; build a new one", "factory", "parameters")
    folder = options.output or (options.model if is_extended else None)
    if folder is None:
        raise InputError("--output FOLDER: the folder of the index is missing")
    if is_index(folder) and expand_home(folder).resolve() != expand_home(options.model).resolve():
        raise InputError(f"--output {folder}: an index is there, which dml index {folder} IMAGES extends")
    list_source(options.images)  # before the model is loaded: mistakes are told at once
    with hold_folder(folder) as path:
        if is_extended:
            index = Index.load(options.model, device=options.device, trust=options.trust)
            keep_freed_memory(index.model.device)
            count = index.upsert(options.images, **embedding)
        else:
            kind = {"factory": options.factory or EXACT, "parameters": options.parameters or ""}
            index = Index.build(load_for_many_images(options), options.images, **kind, **embedding)
            count = len(index)
        index.write(path)
    print_line(f"{printable(folder)}: {count:,} images embedded, {len(index):,} in the index")


def _check(options: argparse.Namespace) -> None:
    """Measure an index, print what it finds, and keep that in its folder."""
    from dml.inference import Index  # after --help: it takes seconds
    from dml.inference.certificates import describe
    from dml.inference.image_inputs import list_source
    from dml.inference.index_folder import hold_folder, read_description, write_certificate

    read_description(expand_home(options.model))  # so that no folder is made for an index that isn't there
    with hold_folder(options.model) as path:
        index = Index.load(path, device=options.device, trust=options.trust)
        images = None if options.images is None else list_source(options.images)[0]
        index.check(options.check if images is None else images[: options.check], recall=options.recall)
        certificate: Any = index.certificate
        write_certificate(path, index.vectors.parameters, certificate)
    parameters = index.vectors.parameters and f", {index.vectors.parameters}"
    print_line(f"{printable(options.model)}{parameters}: {describe(certificate, index.state)}")
    for label, recall, low, high, count in certificate["labels"]:
        print_line(f"  {recall:.3f} ({low:.3f} to {high:.3f}) by {count:,} of {printable(label)}")


def _upload(options: argparse.Namespace) -> None:
    from dml.inference.vector_stores import parse_address, upload_images

    parse_address(options.to)  # mistakes are told before a model is loaded
    model = load_for_many_images(options)
    arguments = embedding_options(options) | {"root": options.root, "prune": bool(options.prune)}
    collection, uploaded = upload_images(model, options.to, options.images, **arguments)
    print_line(f"{printable(options.to)}: {uploaded:,} images uploaded to {collection}")
