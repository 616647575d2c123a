"""The command ``dml export``."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dml.commands.command_parser import CommandParser
from dml.commands.error_lines import print_line
from dml.runtime.imports import quick_imports
from dml.runtime.text import printable

if TYPE_CHECKING:
    from dml.inference.exporting import ExportReport, GraphResult

DESCRIPTION = """\
Write a trained model to a file that runs without dml: ONNX, or a program of
torch.export. It takes pixels (B, h, w, 3) of type uint8, and gives the vectors
of dml embed. Images are embedded with both, and a file whose vectors or whose
recall@1 differ is not written. Reading and resizing images stay outside;
FILE.json says how."""

EXAMPLES = {
    "dml export outputs/RUN --output model.onnx": "compares on test images of the run",
    "dml export my_model --output model.pt2 --probe photos": "compares on the images in the folder photos",
    "dml export outputs/RUN --output model.onnx --quantize int8": "writes model.int8.onnx, too",
}


def export_model(arguments: Sequence[str]) -> None:
    """Export the model that the arguments of ``dml export`` name, and print how the file compares with it."""
    parser = CommandParser("export", DESCRIPTION, EXAMPLES)
    parser.add_model()
    parser.add_argument("--output", required=True, metavar="FILE", help="file to write: .onnx or .pt2")
    heads = "heads whose embeddings are concatenated (default: those that the training chose, or all)"
    parser.add_argument("--heads", nargs="+", metavar="HEAD", help=heads)
    images = "folder or .csv file of images to compare on (default: the run's test)"
    parser.add_argument("--probe", metavar="IMAGES", help=images)
    parser.add_argument("--quantize", choices=("int8",), help="write a second file, with weights of 8 bits")
    parser.add_number("--batch-size", default=32, meaning="images at a time")
    parser.add_trust()
    options = parser.parse(arguments)
    with quick_imports():
        from dml.inference import exporting, load  # after --help: it takes seconds
        from dml.inference.image_inputs import list_source

    exporting.check_export(options.output, options.quantize)
    if options.probe:
        list_source(options.probe)  # before the model is loaded: mistakes are told at once
    model = load(options.model, heads=options.heads, device="cpu", trust=options.trust)
    probe = exporting.list_probe(model, options.probe) if options.probe else exporting.read_test(model)
    report = exporting.export_model(
        model, options.output, probe, quantize=options.quantize, batch_size=options.batch_size
    )
    print_line(format_report(report))


def format_report(report: "ExportReport") -> str:
    """Format the comparison of a model and its files as a table, and what 8 bits cost below it."""
    from dml.runtime.text import markdown_table

    results = [result for result in (report.model, report.exported, report.quantized) if result is not None]
    header = ["", "largest difference", "least cosine", "recall@1", "images/s", "MB"]
    lines = [markdown_table(header, map(_row, results), right=range(1, len(header)))]
    lines.append(f"{report.images:,} images, on the CPU, network alone")
    if report.quantized and report.model.recall is not None and report.quantized.recall is not None:
        points = 100 * (report.quantized.recall - report.model.recall)
        speed = report.quantized.images_per_second / report.exported.images_per_second
        lines.append(f"int8: {points:+.2f} points of recall@1, {speed:.2f} times the speed of {report.file.name}")
    lines += [printable(result.file) for result in results if result.file]
    return "\n".join(lines)


def _row(result: "GraphResult") -> list[str]:
    """Return the cells of a model or a file."""
    recall = "" if result.recall is None else f"{100 * result.recall:.2f}"
    speed = f"{result.images_per_second:,.1f}"
    if result.file is None:
        return ["PyTorch", "", "", recall, speed, ""]
    difference, cosine = f"{result.max_difference:.1e}", f"{result.min_cosine:.6f}"
    return [printable(result.file.name), difference, cosine, recall, speed, f"{result.file.stat().st_size / 1e6:.1f}"]
