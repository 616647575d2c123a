"""The file of a study: its cells, what settings change and select, and how values are chosen."""

from pathlib import Path

import configurations
import pytest
from conftest import ROOT
from omegaconf import OmegaConf

from dml.runtime.errors import InputError
from dml.studies.experiments import compose
from dml.studies.study import REFERENCE, Search, Study, read_study

NOT_ON_THE_LEADERBOARD = {
    "angular_n_pair",  # the sum of two losses that are on it
    "softmax",  # a classifier for classes that are known beforehand
    "matryoshka",  # any loss over prefixes of the embedding
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
    leaderboard = read("leaderboard", "datasets=emoji", "conditions=heads").selected
    for cell in (*leaderboard, *read("benchmark", "datasets=cub200", "conditions=resnet50").selected):
        assert cell.search is not None
        configured = configurations.compose(command=f"loss/{cell.row}")
        assert cell.training.overrides[0] == f"loss={cell.row}"
        for override, is_configured in zip(cell.search.steps[-1], (False, True, False), strict=False):
            key, value = override.split("=")
            if key != "optimizer.lr":  # the loss has no number to choose
                assert (OmegaConf.select(configured, key) == float(value)) == is_configured, override


def test_settings_change_and_select() -> None:
    study = read("leaderboard", "rows=rll,*softmax", "conditions=whole", "seeds=5")
    assert {(cell.row, cell.condition) for cell in study.selected} == {
        ("rll", "whole"),
        ("normalized_softmax", "whole"),
    }
    assert (study.seeds, study.name_results()) == (5, "leaderboard")  # other runs of the same trainings
    changed = read("leaderboard", "datasets.emoji.experiment=leaderboard/photographs")
    assert changed.by_key["emoji", "heads", "rll"].training.experiment == "leaderboard/photographs"
    names = {study.name_results(overrides) for study in (study, changed) for overrides in ([], ["training.ema=0.9"])}
    assert len(names) == 4


@pytest.mark.parametrize(
    ("setting", "line"),
    [
        ("rows=rl", "rows=rl: there is none; nearest: rll"),
        ("conditions=whol", "conditions=whol: there is none; nearest: whole"),
        ("seed=3", "seed=3: the study has no seed; nearest: seeds; --set gives one of every run"),
        ("seeds=0", "seeds=0: must be a whole number, 1 or more"),
        ("seeds=1.5", "seeds='1.5': must be a whole number, 1 or more"),
        ("datasets=photographs", "datasets=photographs: give --data /data, if it is /data/grocery"),
        ("datasets.photographs.root=/none.csv", "/none.csv: no such file, which is the data set photog"),
    ],
)
def test_a_wrong_setting_is_named(setting: str, line: str) -> None:
    with pytest.raises(InputError, match="^" + line):
        read("leaderboard", setting)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("rows: {a: []}", "no study .*datasets"),
        ("seeds: 1\ndatasets: {emoji: {}}\nrows: {a: []}", "no study .*experiment"),
        ("seeds: 1\ndatasets: {d: {experiment: x}}\nrows: {a: {values: {b: [1, 2]}}}", "no study .*score"),
        ("[]", "describes no study"),
    ],
)
def test_a_fault_of_the_file_is_one_line(text: str, line: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
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
    search = Search("map@r", steps=(("a=1", "a=2"), ("b=1", "b=2")))
    first = search.propose([])
    assert first == [("a=1",), ("a=2",)]
    assert search.propose([(first[0], 0.5)]) == []  # the other one is still trained
    tried = list(zip(first, (0.5, 0.7), strict=True))
    second = search.propose(tried)
    assert second == [("a=2", "b=1"), ("a=2", "b=2")]
    assert search.propose([*tried, *zip(second, (0.6, 0.8), strict=True)]) == []
