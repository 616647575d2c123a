"""What the experiments' comments say of the papers' protocols, and the page that is made of them."""

from pathlib import Path
from random import Random

import pytest
from conftest import ROOT
from omegaconf import OmegaConf

import dml.studies.reproducibility
from dml.run.config_folders import CONF
from dml.studies.experiments import compose
from dml.studies.paper_tables import PAPERS, read_tables
from dml.studies.reproducibility import (
    Difference,
    UnstatedValue,
    find_differences,
    find_unstated_values,
    read_file,
    read_files,
    render_reproducibility_page,
)
from dml.studies.study import Training

pytestmark = pytest.mark.pipeline

FILE = """# @package _global_
# RLL, Table I: something. Its head is
# not stated; ours. About 2 GPU hours.
# python train.py experiment=one \\
#     dataset.root=/data
# differs: the crops are of 227,
#   as the network's input.
# differs (nmi, h_ap): the mean is geometric.
defaults:
  - /experiment/settings
  - override /loss: nra # not stated; ours
  - /sampler@stages.a.sampler: n_pair # 64 pairs
  - _self_

model:
  embed_dim: 512 # the release
  heads: [L, M] # all of them
  backbone: {freeze_batchnorm: true, weights: null} # not stated; ours
optimizer: {lr: 1.0e-3} # stated for Table II alone
"""
SETTINGS = """# differs: it is another network.
model: {embed_dim: 64} # not stated; ours
optimizer: {weight_decay: 0.0} # not stated; ours
"""


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "experiment"
    folder.mkdir()
    (folder / "one.yaml").write_text(FILE)
    (folder / "settings.yaml").write_text(SETTINGS)
    monkeypatch.setattr(dml.studies.reproducibility, "CONF", tmp_path)
    monkeypatch.setattr(dml.studies.reproducibility, "read_file", read_file.__wrapped__)


@pytest.mark.usefixtures("written")
def test_a_file_is_read_with_its_comments() -> None:
    settings, own = read_files("one")
    assert settings.differences == (Difference("it is another network."),)
    assert own.differences == (
        Difference("the crops are of 227, as the network's input."),
        Difference("the mean is geometric.", ("nmi", "h_ap")),
    )
    assert own.keys >= {"loss", "stages.a.sampler", "model.embed_dim", "model.backbone.weights"}
    assert own.unstated == (
        UnstatedValue("one.yaml", (), "Its head is not stated; ours."),
        UnstatedValue("one.yaml", ("loss=nra",), "not stated; ours"),
        UnstatedValue("one.yaml", ("model.embed_dim=512",), "the release"),
        UnstatedValue(
            "one.yaml", ("model.backbone.freeze_batchnorm=true", "model.backbone.weights=null"), "not stated; ours"
        ),
        UnstatedValue("one.yaml", ("optimizer.lr=0.001",), "stated for Table II alone"),
    )


@pytest.mark.usefixtures("written")
def test_a_value_that_is_set_anew_is_no_choice() -> None:
    values = [
        value
        for choice in find_unstated_values(Training("one", ("model.backbone.weights=x",)))
        for value in choice.overrides
    ]
    kept = ["optimizer.weight_decay=0.0", "loss=nra", "model.embed_dim=512", "model.backbone.freeze_batchnorm=true"]
    assert values == [*kept, "optimizer.lr=0.001"]


def test_a_difference_touches_its_metrics_and_a_row_its_own() -> None:
    (table,) = [table for table in read_tables() if str(table) == "happier-6"]
    texts = {cell.metric: [one.text for one in find_differences(table, cell)] for cell in table.numbers}
    assert len(texts["h_ap"]) == len(texts["sum_wap"]) == 2
    assert len(texts["ndcg"]) == 1
    (table,) = [table for table in read_tables() if str(table) == "rll-XIV"]
    rows = {cell.row: [one.text for one in find_differences(table, cell)] for cell in table.numbers}
    assert [line.partition(";")[0] for line in rows["ck_60x4"]] == ["45 classes x 4 images"]
    assert rows["ck_60x3"] == []


TRAININGS = list(dict.fromkeys(training for table in read_tables() for training in table.trainings))


@pytest.mark.first_cases(12)
@pytest.mark.parametrize("training", Random(0).sample(TRAININGS, len(TRAININGS)), ids=str)
def test_every_choice_is_the_configurations(training: Training) -> None:
    config = None
    for choice in find_unstated_values(training):
        for key, _, value in (override.partition("=") for override in choice.overrides):
            config = config or compose(training)
            found = OmegaConf.select(config, key)
            if not OmegaConf.is_dict(found):  # a group, whose values are its own
                shown = OmegaConf.create({"value": OmegaConf.create(f"value: {value}").value})
                assert found == shown.value, key


def test_the_page_is_that_of_the_experiments() -> None:
    assert (ROOT / "docs" / "reproducibility.md").read_text(encoding="utf-8") == render_reproducibility_page(), (
        "make reproducibility"
    )
    sections = render_reproducibility_page().split("\n## ")
    for table in read_tables():
        (section,) = [section for section in sections if section.startswith(f"{PAPERS[table.paper]}\n")]
        (line,) = [line for line in section.splitlines() if line.startswith(f"| {table.name} |")]
        assert f" {len(table.numbers)} |" in line


def experiments() -> list[str]:
    names = (path.relative_to(CONF / "experiment") for path in (CONF / "experiment").rglob("*.yaml"))
    return sorted(str(name.with_suffix("")) for name in names if "settings" not in name.parts)


OF_NO_PAPER = ("claims/base", "protocol/base", "leaderboard/emoji", "leaderboard/photographs")
"""Experiments that stand for no paper's protocol; others begin with the first one."""


def test_who_repeats_images_of_short_classes_says_so() -> None:
    for name in experiments():
        config = compose(Training(name))
        samplers = {"sampler": config.sampler} | {
            f"stages.{stage}.sampler": own.sampler for stage, own in config.stages.items() if "sampler" in own
        }
        for key, sampler in samplers.items():
            if sampler.get("short_classes") == "repeat" and name not in OF_NO_PAPER:
                assert any(f"{key}.short_classes" in part.keys for part in read_files(name)), name
