"""The HTML pages of a run and of searches, with their tables of metrics, and the files of a tested run."""

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

from dml.data.images import ImageLimits, read_image
from dml.data.table import UNKNOWN, ImageTable
from dml.evaluation.evaluator import Evaluator
from dml.evaluation.metric import QUERIES_WITHOUT_POSITIVES, MetricName
from dml.evaluation.names import describe_metric, format_value, is_joint_metric, split_parts
from dml.evaluation.per_query import QueryTable, join_lists, score_queries, write_queries
from dml.evaluation.ranking import PerQuery
from dml.report.charts import draw_map, embedding_map, make_charts, make_threshold_section
from dml.report.pictures import ReadPicture, choose_queries, draw_queries
from dml.report.run import ReportedRun, collect_versions, read_run
from dml.report.sheets import COLUMNS, Tiles, find_confusions, make_search_results, make_sheets
from dml.retrieval.rows import Embeddings, UnitEmbeddings
from dml.runtime.errors import check_whole
from dml.runtime.files import expand_home, replacing, write_text
from dml.runtime.run_folder import RunFolder
from dml.runtime.text import printable

HEADLINES = ("level0/recall@1", "level0/map@r", "h_ap", "level0/nmi")


@dataclass(frozen=True)
class MetricTable:
    """A table of metrics, whose rows are grouped by level, with sentences below it."""

    columns: Sequence[str]
    groups: Mapping[str, Mapping[str, Sequence[str]]]  # {level, or "" for all together: {name of the row: cells}}
    notes: Sequence[str] = ()


def make_metric_tables(run: ReportedRun) -> list[MetricTable]:
    """Make a table of the metrics of each level, and one of those of all levels together, such as H-AP, if several."""
    trained = "after training" if run.is_trained else "the vectors"
    whole = "all heads" if any(MetricName.parse(name).heads for name in run.metrics) else trained
    rows = {
        row: {name: value for name, value in part.items() if is_joint_metric(name, value)}
        for row, part in split_parts(run.metrics, "before training", whole).items()
    }
    names = dict.fromkeys(name for values in rows.values() for name in values)
    scopes = {f"level{i}": level for i, level in enumerate(run.queries.levels)} | {"mean": "mean of the levels"}
    groups = {
        group: [name for name in names if name.rpartition("/")[0] == scope]
        for scope, group in (scopes | {"": ""}).items()
    }
    joint = groups.pop("")
    if len(run.queries.levels) == 1 and any(groups.values()):  # H-AP is then AP, and ASI and NDCG say nothing more
        joint = []
    tables = [_make_table(rows, groups, run, _note_skipped_queries(run)), _make_table(rows, {"": joint}, run)]
    return [table for table in tables if table.columns]


def _make_table(
    rows: Mapping[str, Mapping[str, float]], groups: Mapping[str, Iterable[str]], run: ReportedRun, *notes: str
) -> MetricTable:
    """Make the table of some metrics, {group: names in metrics.json}; one of several levels is one column."""
    described = {name: describe_metric(name, run.custom_metrics) for names in groups.values() for name in names}
    columns = {metric.label: metric for metric in described.values()}
    cells: dict[str, dict[str, list[str]]] = {}
    for group, names in groups.items():
        name_by_label = {described[name].label: name for name in names}
        for row, values in rows.items():
            if any(name in values for name in names):
                cells.setdefault(group, {})[row] = [
                    format_value(values.get(name_by_label.get(label, "")), metric) for label, metric in columns.items()
                ]
    counts = [label for label, metric in columns.items() if not metric.shown_in_percent]
    all_notes = (*notes, f"{', '.join(counts)}: not in percent." if counts else "")
    return MetricTable([*columns], cells, [note for note in all_notes if note])


def _note_skipped_queries(run: ReportedRun) -> str:
    """Return a sentence with the number of queries without a positive at each level; "" if all have one."""
    counts = {
        level: int(run.metrics.get(f"level{i}/{QUERIES_WITHOUT_POSITIVES}", 0))
        for i, level in enumerate(run.queries.levels)
    }
    skipped = [f"{count:,} at level {level}" for level, count in counts.items() if count]
    return f"Queries without a positive, which the means leave out: {', '.join(skipped)}." if skipped else ""


def choose_headlines(run: ReportedRun) -> dict[str, tuple[str, str]]:
    """Return {label: (value, value before the training)} of those metrics of `HEADLINES` that the run has."""
    has_levels = len(run.queries.levels) > 1 or "level0/recall@1" not in run.metrics
    names = [name for name in HEADLINES if name in run.metrics and (has_levels or name != "h_ap")]
    described = {name: describe_metric(name, run.custom_metrics) for name in names}
    return {
        metric.label: (format_value(run.metrics[name], metric), format_value(run.metrics.get(f"raw/{name}"), metric))
        for name, metric in described.items()
    }


def run_report(run: ReportedRun) -> str:
    """Make the report of a run: one HTML file that needs no other. The same run gives the same text."""
    tiles, table = Tiles(), run.queries
    content = {
        "run": run,
        "facts": run.summarize(),
        "classes": len(np.unique(table.labels[table.labels[:, 0] != UNKNOWN, 0])),
        "headlines": choose_headlines(run),
        "tables": make_metric_tables(run),
        "charts": make_charts(run.history, table.levels, run.metrics.get("step"), run.custom_metrics),
        "threshold": make_threshold_section(run),
        "score": score_queries(table).name,
        "sheets": make_sheets(table, tiles),
        "map": draw_map(table),
        "confusions": find_confusions(table, tiles),
    }
    return _render("run.html.j2", content, tiles, run.read_picture)


def report(vectors: Embeddings, table: ImageTable, folder: str | Path, *, neighbors: int = 10) -> Path:
    """Write the report of any vectors of images, and return the path of report.html; ``dml.report`` is this function.

    The metrics are those of `dml.evaluation.evaluate`. What can't be compared or read raises `InputError`.

    Args:
        vectors: (N, D) vectors of the rows of the table, in their order, which are L2-normalized.
        table: images with labels, or a pandas DataFrame of them: those of one split or of none, each of which is
            searched among the others, or of "query" and "gallery".
        folder: folder to write to; it is made, and a report in it is replaced.
        neighbors: number of neighbors of each query.
    """
    path, unit = expand_home(folder).absolute(), UnitEmbeddings.normalize(vectors, "vectors")
    table = ImageTable.from_frame(table)
    check_whole("neighbors", neighbors, 1)
    if not (table.split != "").any():
        table = replace(table, split=np.full(len(table), "test"))
    lists, metrics = Evaluator(table).evaluate(unit, neighbors=neighbors)
    splits = " and ".join(np.unique(table.split).tolist())
    facts = {"split": splits, "vector": f"{unit.rows.shape[1]:,} dimensions, cosine"}
    run = ReportedRun(
        name="/".join(path.parts[-2:]),
        metrics=metrics | facts,
        queries=_make_queries(table, lists, neighbors, unit),
        config=yaml.safe_dump({"dataset": {"name": path.name}}, allow_unicode=True),
        is_trained=False,
    )
    write_text(path / "report.html", run_report(run))
    return path / "report.html"


def search_report(
    searches: Mapping[str, Any], results: Sequence[Mapping[str, Any]], read: ReadPicture = read_image
) -> str:
    """Make a page of searches, each image beside what it finds: one HTML file that needs no other.

    Args:
        searches: "index", its name, and "size", the number of its images; "threshold", the similarity from which on
            images are probably of the query's class, or None, and "choice", its meaning in words; "prior", the share of
            pairs of one class in percent for which the probabilities are, which may be empty.
        results: queries with their neighbors, see `dml.report.sheets.make_search_results`.
        read: function that reads a picture.
    """
    tiles = Tiles()
    content = {"searches": searches, "results": make_search_results(results, tiles)}
    return _render("searches.html.j2", content, tiles, read)


def write_pictures(
    folder: RunFolder,
    metrics: Mapping[str, Any],
    table: ImageTable,
    embeddings: UnitEmbeddings,
    lists: Sequence[PerQuery],
    limits: ImageLimits,
    *,
    sheet: Any,
    report: Any,
) -> None:
    """Write retrieval.png, and per_query.parquet with report.html, into the folder of a run.

    Args:
        folder: folder of the run.
        metrics: the future metrics.json.
        table: images of the tested split.
        embeddings: embeddings (N, D) of the table's rows.
        lists: queries of each benchmark list.
        limits: largest image files that are read.
        sheet: ``evaluation.sheet``, of retrieval.png; None writes none.
        report: ``evaluation.report``, of the other files; None writes none.
    """
    # Files of an earlier test would be taken for those of this one.
    for file in (folder.picture_file, folder.queries_file, folder.report_file):
        file.unlink(missing_ok=True)
    if sheet:
        ranked = _make_queries(table, lists[:1], sheet.neighbors)
        level = int((ranked.labels >= 0).all(axis=0).argmax())  # a list of a coarse level has no finer classes
        queries = choose_queries(len(ranked), sheet.queries, sheet.seed).tolist()
        read = functools.partial(read_image, limits=limits)
        draw_queries(ranked, queries, folder.picture_file, read, neighbors=sheet.neighbors, level=level)
    if report:
        mapped = embeddings if report.map else None
        write_queries(folder.queries_file, _make_queries(table, lists, report.neighbors, mapped, report.seed))
        with replacing(folder.report_file) as partial:
            partial.write_text(run_report(read_run(folder.path, metrics)), encoding="utf-8")


def _make_queries(
    table: ImageTable, lists: Sequence[PerQuery], neighbors: int, mapped: UnitEmbeddings | None = None, seed: int = 0
) -> QueryTable:
    """Make the table of the queries of some lists, with their places on the map of embeddings, if there is one."""
    queries = np.concatenate([part.queries for part in lists])
    positions = None if mapped is None else embedding_map(mapped.take(queries), seed=seed)
    described = {"levels": table.levels, "names": table.names}
    return join_lists(table, lists, neighbors, **described, made_with=collect_versions(), positions=positions)


def _render(template: str, content: Mapping[str, Any], tiles: Tiles, read: ReadPicture) -> str:
    """Render a page with the sheet of its pictures."""
    environment = Environment(
        loader=PackageLoader("dml.report", "assets"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        finalize=_make_printable,
    )
    style = (resources.files("dml.report") / "assets" / "report.css").read_text(encoding="utf-8")
    sheet = {"uri": tiles.encode_sheet(read), "columns": COLUMNS, "rows": tiles.rows} if tiles else None
    return environment.get_template(template).render(content, style=style, sheet=sheet)


def _make_printable(value: Any) -> Any:
    """Escape what a page can't show in a string: control characters, and bytes that aren't UTF-8."""
    if type(value) is not str:  # what the templates have escaped, and call safe, is of a class of its own
        return value
    return "\n".join(map(printable, value.split("\n")))
