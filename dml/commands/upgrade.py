"""The command ``dml upgrade``."""

from argparse import Namespace
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from dml.commands.command_parser import CommandParser, embedding_options, load_for_many_images
from dml.commands.error_lines import print_line
from dml.runtime import signals
from dml.runtime.files import expand_home
from dml.runtime.imports import quick_imports
from dml.runtime.text import printable

DESCRIPTION = """\
Give an index a better model. Some of its images are embedded by the new model,
and a table shows what both models find, and what the new one finds among the
old vectors through adapters. With an adapter, queries are embedded by the new
model from then on, and search the old vectors at once. Then all images are
embedded again; until the end, each answer is from the old vectors. The same
command begins this anew after an interruption."""

EXAMPLES = {
    "dml upgrade my_index outputs/RUN --dry-run": "prints the table, and changes nothing",
    "dml upgrade my_index outputs/RUN": "upgrades the index, with the better adapter if one pays",
    "dml upgrade my_index": "goes on with an upgrade that has an adapter",
}


def upgrade(arguments: Sequence[str]) -> None:
    """Upgrade the index that the arguments of ``dml upgrade`` name, and print what that changes."""
    parser = CommandParser("upgrade", DESCRIPTION, EXAMPLES)
    parser.add_argument("index", metavar="INDEX", help="folder of an index")
    parser.add_argument("model", metavar="NEW_MODEL", nargs="?", help="new model, as dml index takes it")
    adapter = (
        "map from new queries to old vectors; none: the old model answers until all is embedded again; auto takes the "
        "better one if it finds more than the old model, and else none (default: auto)"
    )
    parser.add_argument("--adapter", default="auto", choices=("auto", "procrustes", "affine", "none"), help=adapter)
    parser.add_argument("--dry-run", action="store_true", help="print the table alone")
    parser.add_embedding()
    options = parser.parse(arguments)
    signals.state.hint = lambda: "the same command goes on"
    from dml.inference.index_folder import hold_folder, read_description

    path = expand_home(options.index).absolute()
    read_description(path)  # so that no folder is made for an index that isn't there
    with nullcontext() if options.dry_run else hold_folder(path):
        _upgrade(options, path)


def _upgrade(options: Namespace, path: Path) -> None:
    with quick_imports():
        from dml.inference import Index
        from dml.inference.index_folder import remove_unused_versions

    index = Index.load(path, device=options.device, trust=options.trust)
    name, embedding = printable(options.index), embedding_options(options) | {"progress": True}
    model = load_for_many_images(options) if options.model else index.model
    is_same = index.model.fingerprint == model.fingerprint
    if is_same and not index.adapter:
        if not options.dry_run:
            remove_unused_versions(path)  # of an upgrade that was killed at its end
        print_line(f"{name}: {len(index):,} images, of the model {model.fingerprint} already")
        return
    if options.dry_run or not is_same:
        report = index.upgrade(model, options.adapter, dry_run=True, **embedding)
        print_line(str(report))
        if options.dry_run:
            return
        if report.adapter:
            index.model, index.adapter = model, report.adapter
            index.write(path)
            print_line(f"{name}: from now on queries are of the model {model.fingerprint}, mapped by the adapter")
    index.replace_vectors(model, model.embed(index.items.paths.tolist(), **embedding))
    index.write(path)
    print_line(f"{name}: {len(index):,} images, all embedded again by the model {model.fingerprint}")
