"""The pictures of a test, with the table and the report that belong to them."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dml.data.image_files.images import read_image
from dml.data.image_files.limits import ImageLimits
from dml.data.table import ImageTable
from dml.evaluation.per_query import join_lists, write_queries
from dml.evaluation.ranking.queries import PerQuery
from dml.evaluation.report import collect_versions, read_run, run_report
from dml.evaluation.sheets.embedding_map import embedding_map
from dml.evaluation.sheets.pictures import choose_queries
from dml.evaluation.sheets.table_pictures import draw_queries
from dml.evaluation.unit_embeddings import UnitEmbeddings
from dml.ops.filesystem.files import replacing
from dml.ops.run_folders.run_folder import RunFolder


def write_pictures(
    folder: RunFolder,
    metrics: Mapping[str, Any],
    table: ImageTable,
    embeddings: UnitEmbeddings,
    lists: Sequence[PerQuery],
    limits: ImageLimits,
    *,
    sheet: Mapping[str, int] | None,
    report: Any,
) -> None:
    """Write retrieval.png, and per_query.parquet with report.html, into the folder of a run, or remove those there.

    Files of an earlier test would be taken for those of this one.

    Args:
        folder: folder of the run.
        metrics: contents of metrics.json.
        table: the tested images.
        embeddings: embeddings (N, D) of the tested images.
        lists: the queries of each benchmark list with their metrics and neighbours.
        limits: how large the images' files may be.
        sheet: numbers of queries and neighbors of retrieval.png, and the seed of the choice of queries; None writes no
            retrieval.png.
        report: settings of the report with the attributes neighbors, map and seed, as ``evaluation.report`` has them;
            None writes no per_query.parquet and no report.html.
    """
    described = {"levels": table.levels, "names": table.names, "made_with": collect_versions()}
    if sheet:
        ranked = join_lists(table, lists[:1], sheet["neighbors"], **described)
        level = int((ranked.labels >= 0).all(axis=0).argmax())  # a list of a coarse level has no finer classes
        queries = choose_queries(len(ranked), min(sheet["queries"], len(ranked)), sheet["seed"]).tolist()
        read = functools.partial(read_image, limits=limits)
        levels = slice(level, level + 1)
        draw_queries([("", ranked)], queries, folder.picture_file, read, neighbors=sheet["neighbors"], levels=levels)
    else:
        folder.picture_file.unlink(missing_ok=True)
    if report:
        queries = np.concatenate([part.queries for part in lists])
        positions = embedding_map(embeddings.take(queries), seed=report.get("seed", 0)) if report.map else None
        queries_table = join_lists(table, lists, report.neighbors, **described, positions=positions)
        write_queries(folder.queries_file, queries_table)
        with replacing(folder.report_file) as partial:
            partial.write_text(run_report(read_run(folder.path, metrics)), encoding="utf-8")
    else:
        folder.queries_file.unlink(missing_ok=True)
        folder.report_file.unlink(missing_ok=True)
