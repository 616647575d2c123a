"""Several data sets in one run: emoji and digits are trained, validated and tested together."""

import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from configurations import compose, settings_of
from conftest import ONE_HEAD, Here, Refused
from PIL import Image
from runs import TWO, Ended, assert_same_run, last, metrics, run_ranks, stop_at

from dml.evaluation.items import benchmark_lists
from dml.run.builders import build_table
from dml.run.settings import DatasetSettings, read_settings
from dml.run.table_reading import read_table
from dml.runtime.run_folder import RunFolder

SHORT = [override for override in ONE_HEAD if override != "dataset.counts=null"]
LOSS = ["sampler.shares=loss", "sampler.batches_per_epoch=4"]


def choose(small_emoji: Path) -> list[str]:
    roots = [f"dataset.sets.emoji.root={small_emoji}", "dataset.sets.emoji.counts=null"]
    return [
        "dataset=many",
        "dataset.sets.emoji=emoji",
        "dataset.sets.digits=digits",
        *roots,
    ]


@pytest.fixture(scope="module")
def uninterrupted(small_emoji: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run whose shares follow the losses."""
    folder = tmp_path_factory.mktemp("uninterrupted") / "run"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("sys.argv", ["train.py", *choose(small_emoji), *SHORT, *LOSS, f"hydra.run.dir={folder}"])
        from dml.commands import main

        main("train")
    return folder


def test_a_run_has_the_metrics_of_each_and_their_mean(uninterrupted: Path, here: Here, tmp_path: Path) -> None:
    found = metrics(uninterrupted)
    by_set = [found[f"{name}/level0/recall@1"] for name in ("emoji", "digits")]
    assert found["level0/recall@1"] == np.mean(by_set)
    history = RunFolder(uninterrupted).history()
    validated = [row for row in history if row.get("val/level0/map@r")]
    assert validated
    assert all(row["val/level0/map@r"] == row["val/emoji/level0/map@r"] for row in validated)  # digits has no val
    splits = RunFolder(uninterrupted).splits()
    assert splits is not None
    assert {name.partition("/")[0] for name in splits["train"]} == {"emoji", "digits"}
    assert {name.partition("/")[0] for name in splits["val"]} == {"emoji"}
    tested = tmp_path / "tested"
    here("evaluate", f"checkpoint={uninterrupted / 'checkpoints' / 'best.ckpt'}", f"hydra.run.dir={tested}")
    assert {name: metrics(tested)[name] for name in found if "recall" in name} == {
        name: value for name, value in found.items() if "recall" in name
    }
    alone = tmp_path / "alone"
    digits = ["dataset=digits", "dataset.reader.seed=0", f"hydra.run.dir={alone}"]
    here("evaluate", f"checkpoint={uninterrupted / 'checkpoints' / 'best.ckpt'}", *digits)
    assert metrics(alone)["level0/recall@1"] == found["digits/level0/recall@1"]


@pytest.mark.parametrize(
    ("point", "step"), [("after a step's metrics are logged", 2), ("before a validation is judged", 3)]
)
def test_a_run_goes_on_bit_for_bit_with_its_shares(
    uninterrupted: Path, small_emoji: Path, tmp_path: Path, here: Here, point: str, step: int
) -> None:
    folder = tmp_path / "run"
    arguments = [*choose(small_emoji), *SHORT, *LOSS, f"hydra.run.dir={folder}"]
    assert stop_at(point, 1, signal.SIGTERM, *arguments)[0] == 128 + signal.SIGTERM
    state = last(folder)["callbacks"]["SetShareUpdates"]["state"]
    assert state[3].sum() == step
    assert not torch.equal(state[2], torch.zeros(2))
    here("train", f"resume={folder}")
    assert_same_run(uninterrupted, folder)
    state = last(folder)["callbacks"]["SetShareUpdates"]["state"]
    assert state[3].sum() == 2  # of the second epoch
    assert state[0].sum() == pytest.approx(1)
    assert state[0][0] != state[0][1]


@pytest.mark.distributed
def test_two_processes_share_each_batch_and_go_on(small_emoji: Path, tmp_path: Path) -> None:
    arguments = [*TWO, *choose(small_emoji), *SHORT, *LOSS]
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert run_ranks(tmp_path, *arguments, f"hydra.run.dir={whole}") == [Ended(0, ""), Ended(0, "")]
    signaled = {1: ("before a validation is judged", 1, signal.SIGINT)}
    ended = run_ranks(tmp_path, *arguments, f"hydra.run.dir={stopped}", signaled=signaled)
    assert [end.code for end in ended] == [130, 130]
    assert run_ranks(tmp_path, f"resume={stopped}") == [Ended(0, ""), Ended(0, "")]
    assert_same_run(whole, stopped)


def test_mixed_batches_and_losses_of_each(small_emoji: Path, tmp_path: Path, here: Here) -> None:
    settings = ["sampler.mixed=true", "sampler.shares={emoji:3,digits:1}", "loss=by_set"]
    here("train", *choose(small_emoji), *SHORT, *settings, f"hydra.run.dir={tmp_path}")
    assert metrics(tmp_path)["digits/level0/recall@1"] > 0
    weights = last(tmp_path)["state_dict"]
    assert [len(weights[f"losses.H.inner.{number}.proxies"]) for number in range(2)][1] == 10


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["dataset=many"],
            "dataset.sets: dataset=many joins what dataset.sets.NAME=CHOICE adds, such as emoji=emoji",
        ),
        (["dataset.sets.a=digits"], "dataset.sets: dataset=many joins what dataset.sets.NAME=CHOICE"),
        (["dataset=many", "dataset.sets.raw=digits"], "dataset.sets.raw: metrics have this name; give the data set"),
        (["dataset=many", "dataset.sets.level0=digits"], "dataset.sets.level0: metrics have this name"),
        (["dataset=many", "dataset.sets.a=digit"], "dataset=digit: no such choice; nearest: digits"),
        (["dataset=many", "dataset.sets.a=null"], "error: dataset.sets.a=null: must be the name of a choice"),
        (["dataset=many", "dataset.sets.a=sop"], "dataset.sets.a.root: no value; give dataset.sets.a.root=FOLDER"),
        (["dataset=many", "dataset.sets.a=emoji", "dataset.sets.a.fold=x"], "dataset.sets.a.fold=x: must be a whole"),
        (["dataset=many", "dataset.sets.a=emoji", "dataset.sets.a.fold=9"], "dataset.sets.a.fold=9: with 5 folds"),
        (
            ["dataset=many", "dataset.sets.a=emoji,digits"],
            "must be one choice; -m dataset.sets.a=emoji,digits",
        ),
        (
            ["dataset=many", "dataset.sets.a=emoji", "dataset.sets.a.rot=x"],
            "dataset.sets.a.rot: no such key",
        ),
        (["dataset=many", "dataset.sets.a.root=x"], "dataset.sets.a: no such data set; dataset.sets.a=CHOICE adds one"),
        (["dataset=many", "dataset.sets.a={root:x}"], "dataset.sets.a={root:x}: must be the name of a choice"),
        (
            ["dataset=many", "dataset.sets.a=emoji", "evaluation.exclude=nearest"],
            "evaluation.exclude=nearest: takes one data set, and dataset.sets joins several; null",
        ),
        (
            ["dataset=many", "dataset.sets.a=emoji", "dataset.sets.b=digits", "evaluation.fixed_neighbors=4"],
            "evaluation.fixed_neighbors=4: takes one data set, and dataset.sets joins several; null",
        ),
        (
            ["dataset=many", "dataset.sets.a=emoji", "sampler=many", "sampler.shares={a:1,b:1}"],
            "sampler.shares={'a': 1, 'b': 1}: equal, loss, size, or a number for each of a",
        ),
        (
            ["dataset=many", "dataset.sets.a=emoji", "checkpoints.monitor=b/level0/map@r"],
            "checkpoints.monitor=b/level0/map@r: no metric that a validation has; nearest: a/level0/map@r",
        ),
    ],
)
def test_mistakes_are_one_line(refused: Refused, tmp_path: Path, arguments: list[str], line: str) -> None:
    assert line in refused(*SHORT, *arguments, f"hydra.run.dir={tmp_path}")
    assert not (tmp_path / "checkpoints").exists()


def test_another_data_set_takes_the_place_of_all(uninterrupted: Path) -> None:
    """A stored choice of one of several data sets isn't left over where the command line names another data set."""
    from dml.commands.hydra_command import _merge

    stored = RunFolder(uninterrupted).overrides
    merged = _merge(stored, ["dataset=digits"], {"dataset": "many"})
    assert not [override for override in merged if "sets" in override]
    assert "+dataset@dataset.sets.digits=digits" in stored
    assert _merge(stored, ["+dataset@dataset.sets.digits=mnist"], {})[-1] == "+dataset@dataset.sets.digits=mnist"


def test_each_data_set_is_read_as_alone() -> None:
    config = compose(
        "dataset=many", "+dataset@dataset.sets.a=emoji", "dataset.sets.a.fold=2", "+dataset@dataset.sets.b=digits"
    )
    joined = read_table(read_settings(config.dataset, DatasetSettings), 10**9)
    alone = read_table(read_settings(compose("dataset=emoji", "dataset.fold=2").dataset, DatasetSettings), 10**9)
    rows = joined.domain == "a"
    assert (joined.split[rows] == alone.split).all()
    assert (joined.paths[rows] == alone.paths).all()
    assert (joined.labels[rows] == alone.labels).all()


def test_contents_are_compared_where_a_data_set_says_so(tmp_path: Path) -> None:
    """Of two lists whose galleries hold a copy of the query, that one excludes it which says so."""
    lines = ["path,label,split", "query.png,a,query", "copy.png,a,gallery", "other.png,a,gallery", "more.png,b,gallery"]
    chosen = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        for image, color in {"query": 9, "copy": 9, "other": 40, "more": 80}.items():
            Image.new("RGB", (8, 8), (color, 20, 30)).save(tmp_path / name / f"{image}.png")
        (tmp_path / name / "list.csv").write_text("\n".join(lines))
        chosen += [f"+dataset@dataset.sets.{name}=csv", f"dataset.sets.{name}.root={tmp_path / name / 'list.csv'}"]
        chosen += [f"dataset.sets.{name}.reader.test_fraction=null"]
    for value, numbers in {"true": [1, 0], "false": [0, 0], "null": [0, 0]}.items():
        config = compose("dataset=many", *chosen, f"dataset.sets.first.queries_in_gallery={value}")
        lists = benchmark_lists(build_table(settings_of(config)))
        assert [part.excluded.shape[1] for part in lists if part.excluded is not None] == numbers
