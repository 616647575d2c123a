"""The file of a study: its cells, what settings change and select, and how values are chosen."""

from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT
from omegaconf import OmegaConf

from dml.run.stored_configuration import plain_config
from dml.runtime.configuration import flat
from dml.runtime.errors import InputError
from dml.studies.experiments import compose
from dml.studies.searches import Overrides, Search, SearchedRange
from dml.studies.study import REFERENCE, Study, read_study

NOT_ON_THE_LEADERBOARD = {
    "angular_n_pair",  # the sum of two losses that are on it
    "softmax",  # Fig. 4 of NRA alone
    "matryoshka",  # any loss over prefixes of the embedding
    "by_set",  # any loss, in each of several data sets
    "tuplet_drift",  # the drift of an embedding whose network learns
    "lns",  # the same
}


def read(name: str, *settings: str, data: Path | None = None) -> Study:
    return read_study(REFERENCE / f"{name}.yaml", settings, data)


def test_every_loss_is_on_the_leaderboard() -> None:
    rows = {cell.row for cell in read("leaderboard").cells}
    assert rows == {path.stem for path in (ROOT / "conf/loss").glob("*.yaml")} - NOT_ON_THE_LEADERBOARD


@pytest.mark.pipeline
def test_the_searched_values_have_the_configured_one_in_the_middle() -> None:
    for cell in read("leaderboard", "datasets=emoji", "conditions=heads").selected:
        assert cell.search is not None
        configured = compose(cell.training)
        for (override,), is_configured in zip(cell.search.steps[-1], (False, True, False), strict=False):
            key, value = override.split("=")
            if key != "optimizer.lr":  # the loss has no number to choose
                assert (OmegaConf.select(configured, key) == float(value)) == is_configured, override


@pytest.mark.pipeline
@pytest.mark.parametrize("dataset", ["emoji", "photographs"])
@pytest.mark.parametrize("condition", ["heads", "whole"])
def test_each_row_of_the_ablation_changes_one_part_of_the_default(dataset: str, condition: str, tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("path,label\n")
    study = read("ablation", f"datasets.photographs.root={tmp_path / 'list.csv'}")
    cells = [cell for cell in study.cells if (cell.dataset, cell.condition) == (dataset, condition)]
    default, *others = (flat(plain_config(compose(cell.training.extended(cell.after)))) for cell in cells)
    assert default.get("training.frozen", False) is (condition == "heads")
    for cell, changed in zip(cells[1:], others, strict=True):
        keys = {
            key.partition(".")[0] for key in default.keys() | changed.keys() if default.get(key) != changed.get(key)
        }
        assert len(keys) == 1, cell.row


def test_settings_change_and_select() -> None:
    study = read("leaderboard", "rows=rll,*softmax", "conditions=whole", "seeds=5")
    assert {(cell.row, cell.condition) for cell in study.selected} == {
        ("rll", "whole"),
        ("normalized_softmax", "whole"),
    }
    assert (study.seeds, study.name_results()) == (5, "leaderboard")  # other runs of the same trainings
    changed = read("protocol", "folds=3", "overrides=frozen=true 'transform.size=32'")
    assert {cell.folds for cell in changed.cells} == {3}
    assert "transform.size=32" in changed.cells[0].training.overrides
    names = {
        changed.name_results(),
        read("protocol").name_results(),
        read("protocol").name_results(["training.ema=0.9"]),
    }
    assert len(names) == 3
    assert {cell.row for cell in read("ablation", "rows=constant rate").selected} == {"the default", "constant rate"}
    assert {cell.row for cell in read("claims", "claims=2").selected} == {"rll", "m_1.2"}


@pytest.mark.parametrize(
    ("name", "setting", "line"),
    [
        ("protocol", "rows=rl", "rows=rl: there is none; nearest: rll"),
        ("leaderboard", "conditions=whol", "conditions=whol: there is none; nearest: whole"),
        ("protocol", "fold=3", "fold=3: the study has no fold; nearest: folds; --set gives one of every run"),
        ("protocol", "folds=1", "folds=1: must be 2 or more, such as 4"),
        ("protocol", "seeds=0", "seeds=0: must be above 0, such as 1"),
        ("protocol", "rates=1", "rates=1: must be above 0, such as 0.0001,0.003"),
        ("protocol", "rates=1e-4,inf", "rates=1e-4,inf: must be above 0"),
        ("protocol", "trials=x", "trials=x: must be above 0, such as 8"),
        ("leaderboard", "datasets=photographs", "datasets=photographs: give --data /data, if it is /data/grocery"),
        ("leaderboard", "datasets.photographs.root=/none.csv", "/none.csv: no such file, which is the data set photog"),
    ],
)
def test_a_wrong_setting_is_named(name: str, setting: str, line: str) -> None:
    with pytest.raises(InputError, match="^" + line.replace("/", r"\/")):
        read(name, setting)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("rows: {a: []}", "no datasets"),
        ("seeds: 1\ndatasets: {emoji: {}}\nrows: {a: []}", "no experiment"),
        ("seeds: 1\ndatasets: {d: {}}\nrows: {a: {run: x, like: b}}", "row a: like: there is no b"),
        ("seeds: 1\ndatasets: {d: {}}\nrows: {a: {run: x, tune: [y=1]}}", "row a: tune and by go together"),
        ("[]", "holds no keys"),
        (None, "no such file"),
    ],
)
def test_a_fault_of_the_file_is_one_line(text: str | None, line: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError, match=line):
        read_study(path)


def test_a_data_set_may_have_any_path(tmp_path: Path) -> None:
    photos = tmp_path / "my {photos}, (1)=.csv"
    photos.write_text("path,label\n")
    study = read("leaderboard", f"datasets.photographs.root={photos}", "datasets=photographs", "rows=rll")
    assert compose(study.selected[0].training).dataset.root == str(photos)


# searches


def test_a_grid_goes_from_step_to_step() -> None:
    search = Search("map@r", steps=((("a=1",), ("a=2",)), (("b=1",), ("b=2",))))
    first = search.propose([])
    assert first == [("a=1",), ("a=2",)]
    assert search.propose([(first[0], 0.5)]) == []  # the other one is still trained
    tried = list(zip(first, (0.5, 0.7), strict=True))
    second = search.propose(tried)
    assert second == [("a=2", "b=1"), ("a=2", "b=2")]
    assert search.propose([*tried, *zip(second, (0.6, 0.8), strict=True)]) == []


def test_ranges_span_the_values_of_a_row() -> None:
    (cell,) = (cell for cell in read("protocol").cells if cell.row == "rll")
    assert cell.search is not None
    rate, margin = cell.search.ranges
    assert rate == SearchedRange("optimizer.lr", 1e-4, 3e-3, is_log=True)
    assert margin == SearchedRange("loss.margin", 0.2, 0.8, is_log=True)
    assert SearchedRange.spanning("loss.a", [36, 45, 54]) == SearchedRange("loss.a", 36, 54, is_whole=True)


def test_a_search_told_the_same_proposes_the_same() -> None:
    ranges = (SearchedRange("a", 0.1, 10, is_log=True), SearchedRange("b", 2, 9, is_whole=True))

    def search(name: str, trials: int = 12) -> list[list[float]]:
        tried: list[tuple[Overrides, float]] = []
        own = Search("score", ranges=ranges, trials=trials, name=name)
        while proposed := own.propose(tried):
            tried.append((proposed[0], -abs(np.log(float(proposed[0][0].partition("=")[2])))))
        return [[float(override.partition("=")[2]) for override in overrides] for overrides, _ in tried]

    proposals = search("rll")
    assert len(proposals) == 12
    assert search("rll") == proposals
    assert search("rll", 5) == proposals[:5]
    assert search("nra") != proposals
    for a, b in proposals:
        assert 0.1 <= a <= 10
        assert float(f"{a:.3g}") == a
        assert b in range(2, 10)
    late = [abs(np.log(a)) for a, _ in search("rll", 40)[30:]]
    assert np.mean(late) < np.log(10) / 3  # two thirds of what random draws reach: it has learned
