"""The command ``dml compress``."""

import os
from argparse import Namespace
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from dml.commands.command_parser import (
    CommandParser,
    add_embedding_options,
    embedding_options,
    load_for_many_images,
    positive_number,
)
from dml.commands.error_lines import one_line_errors, print_line
from dml.runtime.errors import InputError
from dml.runtime.paths import expand_home
from dml.runtime.text import printable

if TYPE_CHECKING:
    from dml.inference import ImageEmbedder
    from dml.runtime.run_folder import RunFolder

DESCRIPTION = """\
Measure what smaller vectors of a trained model cost: recall@1, MAP@R, bytes
and speed of prefixes of the vectors, of PCA, and of FAISS's quantizers, each
trained on the training images. The table is printed, and its values are
written to compression.json in the model's folder. See "Smaller vectors" in
docs/using.md."""

EXAMPLES = {
    "dml compress outputs/RUN": "prints the table, and writes outputs/RUN/compression.json",
    "dml compress outputs/RUN --split val --prefixes 16 32": "measures the validation classes",
    "dml compress my_model --root /data/birds --output small.json": "a saved model, with its data set elsewhere",
}


def compress_vectors(arguments: Sequence[str]) -> None:
    """Measure the forms of vectors that the arguments of ``dml compress`` describe; print and write the table."""
    options = _parser().parse_args(arguments)
    with one_line_errors():
        from dml.evaluation.compression import format_rows, make_values
        from dml.retrieval.compressed_vectors import count_threads
        from dml.runtime.run_files import write_values

        path = options.output or _choose_folder(expand_home(options.model)).compression_file
        model = load_for_many_images(options.model, options.device, trust=options.trust)
        if model.ball:
            raise InputError(
                f"{printable(options.model)}: its vectors are compared by {model.geometry} distance; dml compress "
                "measures vectors that are compared by cosine"
            )
        other = options.gallery and load_for_many_images(options.gallery, options.device, trust=options.trust)
        if other and (other.ball or other.dimension != model.dimension):
            raise InputError(
                f"--gallery {printable(options.gallery)}: its vectors have {other.dimension} dimensions, compared by "
                f"{other.geometry}; those of the queries have {model.dimension}, compared by cosine"
            )
        rows = list(_measure(model, other, options))
        described = {"split": options.split, "fingerprint": model.fingerprint, "threads": count_threads()}
        described |= {"step": model.settings.training.get("step"), "gallery_fingerprint": other and other.fingerprint}
        values = {name: value for name, value in described.items() if value is not None} | make_values(rows)
        print_line(format_rows(rows))
        path.parent.mkdir(parents=True, exist_ok=True)
        write_values(path, values, {})
        print_line(f"{printable(path)}")


def _measure(model: "ImageEmbedder", other: "ImageEmbedder | None", options: Namespace) -> Any:
    """Embed the training images and the tested ones, by the model of ``--gallery`` too, and measure."""
    from dml.evaluation.compression import choose_prefixes, measure_compression
    from dml.evaluation.geometry import UnitEmbeddings
    from dml.inference.split_embeddings import build_evaluator, embed_split, read_data_set

    head_dims = {head: model.model.embed_dims[head] for head in model.heads}
    prefixes = choose_prefixes(options.prefixes, head_dims)
    settings, table = read_data_set(model, root=options.root)
    tables, units = {"train": table, options.split: table}, []
    for embedder, split in product((model, other) if other else (model,), [*tables]):
        began = perf_counter()
        tables[split], vectors = embed_split(
            embedder, tables[split], split, progress=True, **embedding_options(options)
        )
        if other:
            speed = len(vectors) / (perf_counter() - began)
            print_line(f"model {embedder.fingerprint}: {speed:,.1f} images/s of the split {split}, reading included")
        units.append(UnitEmbeddings.normalize(vectors))
    return measure_compression(
        units[0].rows,
        units[1],
        head_dims,
        build_evaluator(settings, table, tables[options.split]),
        prefixes,
        options.rescore,
        model.model.concatenation,
        [part.rows for part in units[2:]],
    )


def _choose_folder(place: Path) -> "RunFolder":
    """Return the folder of a run or of a saved model; that of the run, for a checkpoint."""
    from dml.runtime.run_folder import RunFolder

    if not os.path.exists(place):
        raise InputError(
            f"{printable(place)}: no such file or folder; for pretrained:NAME, --output FILE says where to write"
        )
    if os.path.isdir(place):
        return RunFolder(place)
    folder = RunFolder.from_checkpoint(place)
    if not folder.has_configuration:
        raise InputError(
            f"{printable(place)}: a checkpoint outside of a run's folder; --output FILE says where to write"
        )
    return folder


def _parser() -> CommandParser:
    parser = CommandParser("compress", DESCRIPTION, EXAMPLES)
    parser.add_model()
    parser.add_argument(
        "--split", choices=("test", "val"), default="test", help="split that is searched (default: test)"
    )
    parser.add_argument(
        "--prefixes",
        nargs="+",
        type=positive_number,
        metavar="D",
        help="dimensions of each head in the prefixes (default: halves of the largest head, from 8 on)",
    )
    parser.add_number("--rescore", 100, "neighbors that are sorted again by float32 vectors")
    parser.add_argument("--gallery", metavar="MODEL", help="model whose vectors the queries search in further rows")
    parser.add_argument(
        "--root",
        metavar="FOLDER",
        help="folder of the data set (default: as in training); for pretrained:NAME, of a folder for each class",
    )
    parser.add_argument(
        "--output",
        type=expand_home,
        metavar="FILE",
        help="file to write (default: compression.json in the model's folder)",
    )
    add_embedding_options(parser)
    return parser
