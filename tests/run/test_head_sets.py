"""Which heads, metrics and checkpoints a run is judged by, checked before it trains."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from configurations import compose as composed
from configurations import settings_of
from conftest import SMALL, Here, Refused

from dml.data.table import EVERY_LEVEL, ImageTable
from dml.evaluation import Evaluator, MetricConfig
from dml.evaluation.metric import METRICS, METRICS_BY_NAME, MetricName, list_evaluated_heads, metric_names, select_joint
from dml.evaluation.monitor import make_validation_config
from dml.run.builders import build_metric_config, complete_metric_names
from dml.run.checks import check_evaluation
from dml.runtime.errors import InputError


def table(*, a_list_a_level: bool = False, val: bool = True) -> ImageTable:
    numbers = np.arange(24)
    labels = np.stack([numbers % 6, numbers % 3], axis=1)
    split = np.where(numbers < 8, "train", np.where(numbers < 16, "val" if val else "train", "test"))
    benchmark = np.where(a_list_a_level & (split != "train"), numbers % 2, EVERY_LEVEL)
    paths = np.array([f"{number}.jpg" for number in numbers])
    return ImageTable(paths, labels, split, ("fine", "coarse"), benchmark=benchmark)


@pytest.mark.parametrize("a_list_a_level", [False, True])
def test_the_names_of_metrics_are_those_that_an_evaluation_gives(a_list_a_level: bool) -> None:
    part = table(a_list_a_level=a_list_a_level).select_evaluated("test")
    embeddings = torch.randn(len(part), 3, generator=torch.Generator().manual_seed(0))
    everything = MetricConfig(METRICS, recall_at=(1, 5))
    found = Evaluator(part, everything)(embeddings, torch.arange(len(part)))
    names = metric_names(part, everything)
    assert len(set(names)) == len(names)
    assert set(names) == {name for name in found if not name.endswith("queries_without_positives")}
    assert {MetricName.parse(name).family for name in names} == METRICS_BY_NAME.keys()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("level0/recall@10", ("", "level0/recall@10", "recall", 10)),
        ("heads/H/level1/map@r", ("H", "level1/map@r", "map@r", None)),
        ("heads/L+M/h_ap", ("L+M", "h_ap", "h_ap", None)),
        ("mean/recall@0", ("", "mean/recall@0", "recall@0", None)),
    ],
)
def test_a_metrics_name_in_its_parts(name: str, expected: Any) -> None:
    parsed = MetricName.parse(name)
    assert (parsed.heads, parsed.metric, parsed.family, parsed.k) == expected


@pytest.mark.parametrize(
    ("overrides", "evaluated", "concatenated"),
    [
        ([], ["L", "M", "H"], []),
        (["evaluation.head_sets=[[L,M],[M,H]]"], ["L", "M", "H", "L+M", "M+H"], ["L+M", "M+H"]),
        (["evaluation.heads=false", "evaluation.head_sets=[[H],[L,M,H]]"], ["H", "L+M+H"], ["L+M+H"]),
        (["evaluation.heads=false", "checkpoints.monitor=heads/L+H/h_ap"], [], ["L+H"]),
        (["evaluation.heads=false", "model.heads=[H]"], [], []),
    ],
)
def test_the_heads_that_are_evaluated(overrides: list[str], evaluated: list[str], concatenated: list[str]) -> None:
    config = composed(*overrides)
    names = list_evaluated_heads(config.model.heads, config.evaluation.heads, config.evaluation.head_sets)
    assert names == evaluated
    assert select_joint([*names, MetricName.parse(config.checkpoints.monitor).heads]) == concatenated


@pytest.mark.parametrize("sets", ["[L,M]", "[[]]", "[[L,X]]", "[[L,L]]"])
def test_sets_of_other_heads_are_refused(sets: str) -> None:
    config = composed(f"evaluation.head_sets={sets}")
    with pytest.raises(InputError, match=r"head_sets=.*: expected lists of some of the heads L, M, H, .* \[\[L,M\]\]$"):
        list_evaluated_heads(config.model.heads, config.evaluation.heads, config.evaluation.head_sets)


@pytest.mark.parametrize(
    "monitor",
    ["level0/recall@1", "level1/recall@7", "level0/map@r", "level1/nmi", "h_ap", "sum_wap", "heads/H/level0/recall@1"],
)
def test_every_metric_of_a_validation_can_be_monitored(monitor: str) -> None:
    config, images = composed(f"checkpoints.monitor={monitor}", "evaluation.clustering=false"), table()
    check_evaluation(settings_of(config), images)
    part = images.select_evaluated("val")
    embeddings = torch.randn(len(part), 3, generator=torch.Generator().manual_seed(0))
    found = Evaluator(part, make_validation_config(build_metric_config(settings_of(config), part), monitor))(embeddings)
    assert MetricName.parse(monitor).metric in found
    assert "level0/recall@8" in found


@pytest.mark.parametrize(
    ("monitor", "nearest"),
    [
        ("level0/recal@1", "level0/recall@1"),
        ("level2/recall@1", "level1/recall@1"),
        ("recall@1", "level0/recall@1"),
        ("heads/L+L/level0/map@r", "heads/L/level0/map@r"),
        ("val/level0/map@r", "level0/map@r"),
        ("mean/recall@1", "level0/recall@1"),
    ],
)
def test_what_no_validation_has_is_not_monitored(monitor: str, nearest: str) -> None:
    expected = rf"^checkpoints\.monitor={re.escape(monitor)}: no metric that .*; nearest: (.*, )?{nearest}"
    with pytest.raises(InputError, match=expected):
        check_evaluation(settings_of(composed(f"checkpoints.monitor={monitor}")), table())


def test_a_list_a_level_has_a_mean_to_monitor() -> None:
    listed = table(a_list_a_level=True)
    check_evaluation(settings_of(composed("checkpoints.monitor=mean/asi", "evaluation.selection=test")), listed)
    with pytest.raises(InputError, match=r"checkpoints\.monitor=asi: .* nearest: .*mean/asi"):
        check_evaluation(settings_of(composed("checkpoints.monitor=asi", "evaluation.selection=test")), listed)


def test_without_a_validation_nothing_is_monitored() -> None:
    check_evaluation(settings_of(composed("checkpoints.monitor=mean/recall@1")), table(val=False))


def test_a_validation_of_one_class_is_refused_unless_there_is_none() -> None:
    images = table()
    images.labels[images.rows("val"), 0] = 0
    with pytest.raises(InputError, match="the images in the val split are all of one "):
        check_evaluation(settings_of(composed()), images)
    check_evaluation(settings_of(composed("trainer.val_check_interval=null")), images)


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (["checkpoints.monitor=level0/map@k"], "error: checkpoints.monitor=level0/map@k: no metric that a validation"),
        (
            ["+stages={first:{optimizer:{lr:1e-4}},second:{checkpoints:{monitor:h_app}}}"],
            "error: checkpoints.monitor=h_app: no metric that a validation has; nearest: h_ap",
        ),
    ],
)
def test_it_is_said_before_any_training(
    overrides: list[str], line: str, refused: Refused, small_emoji: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    given = [*SMALL, f"dataset.root={small_emoji}", f"hydra.run.dir={folder}", *overrides]
    assert refused(*given).startswith(line)
    assert not list(folder.rglob("*.ckpt"))


def rows_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open(newline="") as file:
        return [row for row in csv.DictReader(file) if row["val/level0/recall@10"]]


def test_a_run_is_chosen_by_a_single_head_and_tests_pairs(here: Here, small_emoji: Path, tmp_path: Path) -> None:
    metrics = ["evaluation.metrics=[ap]", "evaluation.recall_at=[10]", "evaluation.sheet=null"]
    metrics += ["evaluation.clustering=false", "evaluation.threshold=null"]
    heads = [
        "evaluation.head_sets=[[L,M],[M,H]]",
        "checkpoints.monitor=heads/H/level0/map@r",
        "checkpoints.tie_breaker=null",
    ]
    here("train", *SMALL, *metrics, *heads, f"dataset.root={small_emoji}", f"hydra.run.dir={tmp_path}")

    validated = {int(row["step"]): float(row["val/heads/H/level0/map@r"]) for row in rows_of(tmp_path)}
    assert list(validated) == [3, 6]
    assert "val/level0/recall@1" not in rows_of(tmp_path)[0]
    found = json.loads((tmp_path / "metrics.json").read_text())
    assert found["step"] == max(validated, key=lambda step: (validated[step], -step))
    parts = {"", "raw/", "raw/pca/", *(f"heads/{name}/" for name in ("L", "M", "H", "L+M", "M+H"))}
    assert {name.removesuffix("level0/ap") for name in found if name.endswith("level0/ap")} == parts
    assert len({found[f"{part}level0/ap"] for part in parts}) > 4
    assert not any("recall" in name for name in found)

    best, again = tmp_path / "checkpoints" / "best.ckpt", tmp_path / "again"
    here("evaluate", f"checkpoint={best}", "evaluation.head_sets=[[L,H],[L,M]]", f"hydra.run.dir={again}")
    other = json.loads((again / "metrics.json").read_text())
    assert {name: value for name, value in found.items() if name.startswith("heads/L+M/")}.items() < other.items()
    assert "heads/L+H/level0/ap" in other
    assert "heads/M+H/level0/ap" not in other


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    ("metrics", "first", "column"),
    [("[h_ap]", "h_ap", "H-AP"), ("[nmi]", "nmi", "NMI"), ("[recall]", "recall@10", "R@10")],
)
def test_any_metrics_make_a_run_and_its_report(
    metrics: str,
    first: str,
    column: str,
    here: Here,
    small_emoji: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    short = ["trainer.max_steps=1", "trainer.val_check_interval=1", "evaluation.recall_at=[10]"]
    wanted = [f"evaluation.metrics={metrics}", "evaluation.report={neighbors:2,map:false,seed:0}"]
    small = [override for override in SMALL if override != "evaluation.report=null"]
    here("train", *small, *short, *wanted, f"dataset.root={small_emoji}", f"hydra.run.dir={tmp_path}")
    assert "</html>" in (tmp_path / "report.html").read_text()
    shown = capfd.readouterr().out
    assert f"before   {first} " in shown
    assert re.search(rf"% +{column} *\n", shown)
    assert re.search(r"L, M, H +\d+\.\d *\n", shown)


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("recall@1", "level0/recall@1"),
        ("heads/L+H/map@r", "heads/L+H/level0/map@r"),
        ("fnmr@1e-3", "level0/fnmr@1e-3"),
        ("level1/recall@1", "level1/recall@1"),
        ("mean/recall@1", "mean/recall@1"),
        ("h_ap", "h_ap"),
        ("heads/H/h_ap", "heads/H/h_ap"),
        ("mine@5", "level0/mine@5"),
        ("yours", "yours"),
        ("nothing", "nothing"),
    ],
)
def test_a_metric_without_a_level_is_that_of_the_finest(name: str, full: str) -> None:
    config = composed(f"checkpoints.monitor={name}", f"+stages.a.checkpoints.tie_breaker={name}")
    config.evaluation.metrics = ["recall", {"name": "mine", "kind": "at_k"}, {"name": "yours", "kind": "hierarchy"}]
    complete_metric_names(config)
    assert config.checkpoints.monitor == config.stages.a.checkpoints.tie_breaker == full
    assert config.checkpoints.tie_breaker == "level0/recall@1"
