"""Finished runs as a table; the runs are made by the main job itself, in a sweep."""

import csv
import json
import math
import shutil
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import PLAIN
from omegaconf import OmegaConf

from dml.commands.compare import compare_runs
from dml.evaluation.names import MetricDescription
from dml.evaluation.per_query import QueryTable, read_queries, write_queries
from dml.report.comparison import (
    ConfigurationResult,
    compare,
    csv_lines,
    describe_differences,
    find_runs,
    find_unfinished,
    markdown,
    sort_results,
)
from dml.report.statistics import Interval, mean_difference
from dml.runtime.errors import InputError
from dml.runtime.run_folder import RunFolder

SHORT = [override for override in PLAIN if override != "evaluation.report=null"]  # its test writes per_query.parquet
SHORT += ["evaluation.report.map=false", "model.heads=[H]", "trainer.max_steps=2", "trainer.val_check_interval=2"]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory, small_emoji: Path) -> Path:
    """Two losses, found by a glob, over two seeds."""
    folder = tmp_path_factory.mktemp("sweep")
    with pytest.MonkeyPatch.context() as patched:
        command = ["train.py", "-m", "loss=glob([nr*,rll])", "seed=1,2", *SHORT]
        patched.setattr("sys.argv", [*command, f"dataset.root={small_emoji}", f"hydra.sweep.dir={folder}"])
        from dml.commands import main

        main("train")
    return folder


def recalls(sweep: Path, loss: str) -> list[float]:
    return [
        json.loads((path / "metrics.json").read_text())["level0/recall@1"]
        for path in sorted(sweep.iterdir())
        if path.is_dir() and f"loss={loss}" in (path / ".hydra" / "overrides.yaml").read_text()
    ]


def test_a_sweep_by_glob_is_a_row_a_loss(sweep: Path) -> None:
    rows = compare(find_runs([sweep]))
    assert [row.name for row in rows] == ["loss=nra", "loss=rll"]
    for row, loss in zip(rows, ("nra", "rll"), strict=True):
        values = recalls(sweep, loss)
        found = row.metrics["level0/recall@1"]
        assert found.runs == len(values) == 2
        assert found.mean == pytest.approx(statistics.mean(values))
        assert found.deviation == pytest.approx(statistics.stdev(values))
        assert "step" not in row.metrics


def copy_run(run: Path, folder: Path, key: str, value: Any) -> Path:
    """Copy a run whose configuration has another value, which the command line gave."""
    shutil.copytree(run, folder)
    for name in ("config", "overrides"):
        path = folder / ".hydra" / f"{name}.yaml"
        values: Any = OmegaConf.load(path)
        if name == "config":
            OmegaConf.update(values, key, value, force_add=True)
        else:
            values.append(f"{key}={value}")
        OmegaConf.save(values, path)
    metrics = RunFolder(folder).metrics()
    del metrics["configuration"]  # an identifier of the other configuration
    RunFolder(folder).write_metrics(metrics)
    return folder


def test_rows_are_named_by_what_sets_them_apart(sweep: Path, tmp_path: Path) -> None:
    for margin in (0.2, 0.3):
        copy_run(sweep / "2", tmp_path / str(margin), "loss.margin", margin)
    rows = compare(find_runs([tmp_path / "0.2", tmp_path / "0.3"]))
    assert [row.name for row in rows] == ["loss.margin=0.2", "loss.margin=0.3"]
    whole = compare([*find_runs([sweep]), *find_runs([tmp_path])])
    assert [row.name for row in whole] == [
        "loss=nra",
        "loss=rll, loss.margin=0.4",
        "loss=rll, loss.margin=0.2",
        "loss=rll, loss.margin=0.3",
    ]
    assert compare(find_runs([tmp_path / "0.2"]))[0].name == "dataset=emoji, loss=rll"
    same = str(sweep / "2")
    shutil.copytree(same, tmp_path / "again")
    with pytest.raises(InputError, match=r"again: the same configuration and seed=1 as .*2; give one of them"):
        compare(find_runs([sweep, tmp_path]))


def test_tables(sweep: Path) -> None:
    rows = compare(find_runs([sweep]))
    lines = markdown(rows, ["level0/recall@1", "level0/map@r"]).splitlines()
    assert lines[:2] == ["| run | seeds | level0/recall@1 | level0/map@r |", "| --- | ---: | ---: | ---: |"]
    best = max(rows, key=lambda row: row.metrics["level0/recall@1"].mean)
    value = best.metrics["level0/recall@1"]
    cell = f"{100 * value.mean:.1f} ± {100 * value.half_width:.1f} ({100 * value.deviation:.1f})"
    assert lines[2].startswith(f"| {best.name} | 2 | {cell} |")
    assert value.mean == pytest.approx(statistics.mean(recalls(sweep, best.name.removeprefix("loss="))))
    with pytest.raises(InputError, match=r"metric recall@1: no run has it; nearest: level"):
        markdown(rows, ["recall@1"])
    single = compare(find_runs([sweep])[:1])
    assert " ± " not in markdown(single, ["level0/recall@1"])
    header, first, *_ = csv_lines(rows)
    assert header == ["run", "metric", "runs", "mean", "standard_deviation", "low_95", "high_95"]
    assert first[0] == "loss=nra"
    assert first[3] == pytest.approx((first[5] + first[6]) / 2)


FIRST_RANK = MetricDescription("first_rank", "first rank", higher_is_better=False, shown_in_percent=False)


def result(name: str, metrics: dict[str, float], runs: int = 1) -> ConfigurationResult:
    intervals = {metric: Interval(runs, mean, 0.25, 0.5) for metric, mean in metrics.items()}
    return ConfigurationResult(name, intervals, (FIRST_RANK,))


@pytest.mark.parametrize(
    ("metric", "best"),
    [("level0/recall@1", "b"), ("level0/first_rank", "a"), ("level0/queries_without_positives", "a")],
)
def test_the_best_configuration_is_on_top(metric: str, best: str) -> None:
    rows = [result("none", {"level0/nmi": 0.5}), result("NaN", {metric: math.nan})]
    rows += [result(name, {metric: mean, "level0/nmi": 0.5}) for name, mean in (("b", 0.75), ("c", 0.5), ("a", 0.25))]
    names = [line.split(" | ")[0].strip("| ") for line in markdown(rows, [metric]).splitlines()[2:]]
    assert names == (["a", "c", "b"] if best == "a" else ["b", "c", "a"]) + ["none", "NaN"]


def test_fractions_alone_are_in_percent_and_custom_metrics_have_their_labels() -> None:
    names = ["level0/recall@1", "level0/first_rank", "heads/L/level0/first_rank", "queries_without_positives"]
    row = result("rll", dict(zip(names, (0.5, 12.34567, 20001.4, 3.0), strict=True)), runs=2)
    header, _, line = markdown([row], names).splitlines()
    assert header == (
        "| run | seeds | level0/recall@1 | level0/first rank | heads/L/level0/first rank | queries_without_positives |"
    )
    assert line == "| rll | 2 | 50.0 ± 50.0 (25.0) | 12.35 ± 0.5 (0.25) | 20001 ± 0.5 (0.25) | 3 ± 0.5 (0.25) |"
    assert "level0/first_rank" in {line[1] for line in csv_lines([row])}  # a program reads names


def test_folders_without_a_finished_run(sweep: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no finished run in it; a run's folder holds metrics\.json"):
        find_runs([tmp_path])
    (tmp_path / "multirun.yaml").touch()
    (tmp_path / "begun" / ".hydra").mkdir(parents=True)
    for name in ("config", "overrides"):
        shutil.copy(sweep / "0" / ".hydra" / f"{name}.yaml", tmp_path / "begun" / ".hydra")
    with pytest.raises(InputError, match=r"multirun\.yaml: no finished run in it"):
        find_runs([tmp_path / "multirun.yaml"])
    found = find_runs([sweep / "0", *tmp_path.iterdir()])  # as a glob gives them
    assert [run.folder for run in found] == [sweep / "0"]


@pytest.mark.parametrize("file", ["metrics.json", ".hydra/config.yaml"])
def test_a_damaged_run_does_not_keep_the_others_from_the_table(
    sweep: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, file: str
) -> None:
    for name in ("0", "1"):
        shutil.copytree(sweep / name, tmp_path / name)
    for text in ("[" * 200_000, "&a [*a]", '{"h/ap": "x", "model": []}', "model: 3", "\x00"):
        caplog.clear()
        (tmp_path / "1" / file).write_text(text)
        assert [run.folder for run in find_runs([tmp_path])] == [tmp_path / "0"]
        assert str(tmp_path / "1") in caplog.text
        assert find_unfinished([tmp_path]) == []
        with pytest.raises(InputError, match="damaged"):
            find_runs([tmp_path / "1"])


def test_an_evaluation_is_no_run_unless_it_is_named(sweep: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(sweep / "0", run)
    for folder, name in ((run / "val", "last"), (tmp_path / "again", "last"), (tmp_path / "best", "best")):
        copy_run(sweep / "0", folder, "checkpoint", str(run / "checkpoints" / f"{name}.ckpt"))
    assert [found.folder for found in find_runs([tmp_path])] == [run]
    assert [found.folder for found in find_runs([tmp_path / "again"])] == [tmp_path / "again"]
    named = [row.name for row in compare(find_runs([tmp_path / "again", tmp_path / "best"]))]
    assert named == ["checkpoint=last.ckpt", "checkpoint=best.ckpt"]
    named = [row.name for row in compare(find_runs([run, tmp_path / "again"]))]
    assert named == [str(run), "checkpoint=last.ckpt"]
    for folder in (run, run / "val"):
        (folder / "metrics.json").unlink()
    assert find_unfinished([tmp_path]) == [run]


def test_the_command(sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = ["--markdown", str(tmp_path / "table.md"), "--csv", str(tmp_path / "table.csv")]
    compare_runs([str(sweep), *files])
    printed = capsys.readouterr().out
    assert printed.startswith("| run | seeds | level0/recall@1 |")
    assert "\nVector: 8 dimensions, cosine. First weights: random. Checkpoint: " in printed
    best, other = sorted(("nra", "rll"), key=lambda loss: -statistics.mean(recalls(sweep, loss)))
    assert f"\n| run | level0/recall@1, difference to loss={best}, in points |\n" in printed
    difference = 100 * (statistics.mean(recalls(sweep, other)) - statistics.mean(recalls(sweep, best)))
    assert f"\n| loss={other} | {difference:.1f} [" in printed
    assert " draws of the 19 classes of the queries, the same for both runs.\n" in printed
    assert (tmp_path / "table.md").read_text() == printed
    with (tmp_path / "table.csv").open() as file:
        table = list(csv.DictReader(file))
    assert {row["run"] for row in table} == {"loss=nra", "loss=rll"}
    assert all(float(row["low_95"]) <= float(row["mean"]) <= float(row["high_95"]) for row in table)


def test_the_interval_of_a_difference_is_that_of_whole_classes(sweep: Path) -> None:
    rows = compare(find_runs([sweep]))
    best, other = sort_results(rows, "level0/map@r")
    queries = [[read_queries(folder / "per_query.parquet") for folder in row.folders] for row in (best, other)]
    first, second = (np.mean([table.metrics["level0/map@r"] for table in tables], axis=0) for tables in queries)
    expected = mean_difference(first, second, labels=queries[0][0].labels[:, 0])
    cell = f"{100 * expected.mean:.1f} [{100 * expected.low:.1f}, {100 * expected.high:.1f}]"
    assert f"| {other.name} | {cell} |" in describe_differences(rows, "level0/map@r")
    assert describe_differences(rows, "level0/nmi") == ""  # it has no value for each query
    assert describe_differences(rows[:1], "level0/map@r") == ""

    table = queries[1][0]
    renamed = tuple(name.replace("a", "b") for name in table.names[0])
    fewer = {name: np.where(np.arange(len(table)), values, np.nan) for name, values in table.metrics.items()}
    for changed in (replace(table, names=(renamed, *table.names[1:])), replace(table, metrics=fewer)):
        with queries_replaced(changed, other.folders):
            line = "level0/map@r: no differences over the test classes, whose queries aren't the same for all runs\n"
            assert describe_differences(rows, "level0/map@r") == line
    with queries_replaced(replace(table, metrics=fewer), other.folders[:1]):  # one seed of several
        assert describe_differences(rows, "level0/map@r") == ""


@contextmanager
def queries_replaced(table: QueryTable, folders: Sequence[Path]) -> Iterator[None]:
    """The runs in the folders have other tested queries in the body of the ``with`` statement."""
    for folder in folders:
        shutil.copy(folder / "per_query.parquet", folder / "kept")
        write_queries(folder / "per_query.parquet", table)
    try:
        yield
    finally:
        for folder in folders:
            shutil.move(folder / "kept", folder / "per_query.parquet")
