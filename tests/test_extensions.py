"""An option, a loss and a metric of a user's, in folders outside of the package, through the command line."""

import csv
import json
import sys
from pathlib import Path

import pytest
from conftest import PLAIN, Here, Refused
from runs import last

PYTHON_FILES = {
    "users_option.py": """
from pathlib import Path
from pytorch_lightning import Callback

class StopAfter(Callback):
    def __init__(self, steps, monitor):
        self.steps, self.monitor = steps, monitor

    def on_train_batch_end(self, trainer, pl_module, *_):
        if trainer.global_step == self.steps:
            trainer.should_stop = True
            known = [pl_module.validated_on, self.monitor, pl_module.run_description["config"]["seed"]]
            Path(trainer.default_root_dir, "stopped.txt").write_text(" ".join(map(str, known)))
""",
    "users_loss.py": """
import torch

class Squeeze(torch.nn.Module):
    num_bank_neighbors = 2

    def __init__(self, num_classes, strength):
        super().__init__()
        self.strength = strength
        self.known = {"classes": num_classes}

    def set_hierarchy(self, labels):
        self.known["levels"] = labels.shape[1]

    def set_embedding_bank(self, bank):
        self.known |= {"images": len(bank.embeddings), "neighbors": bank.neighbors.shape[1]}

    def forward(self, embeddings, labels):
        return self.strength * embeddings.square().mean() + sum(self.known.values())
""",
    "users_metric.py": """
def first_rank(ranks, offset):
    return ranks[:, 0] + offset
""",
}

YAML_FILES = {
    "trainer/stopping.yaml": """
defaults:
  - default
  - _self_
callbacks:
  - _target_: users_option.StopAfter
    steps: 5
    monitor: ${checkpoints.monitor}
""",
    "loss/squeeze.yaml": """
_target_: users_loss.Squeeze
num_classes: ???
strength: 0.001
""",
    "evaluation/first_rank.yaml": """
defaults:
  - default
metrics:
  - recall
  - _target_: dml.evaluation.Metric
    name: first_rank
    label: Nearest
    kind: level
    higher_is_better: false
    function: {_target_: users_metric.first_rank, _partial_: true, offset: 1000}
""",
}


@pytest.fixture
def extended(here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_emoji: Path) -> list[str]:
    """The arguments of a small run that uses the user's three choices; it isn't started yet."""
    for name, text in PYTHON_FILES.items():
        (tmp_path / name).write_text(text)
    for name, text in YAML_FILES.items():
        path = tmp_path / "my_conf" / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in PYTHON_FILES:
        monkeypatch.delitem(sys.modules, Path(name).stem, raising=False)
    choices = ["trainer=stopping", "loss=squeeze", "evaluation=first_rank", f"hydra.searchpath=[{tmp_path}/my_conf]"]
    return [f"dataset.root={small_emoji}", *PLAIN, "model.heads=[H]", "evaluation.threshold=null", *choices]


def test_a_users_option_loss_and_metric_take_effect(
    here: Here, refused: Refused, extended: list[str], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    here("train", *extended, "trainer.callbacks.0.steps=4", "seed=3", f"hydra.run.dir={run}")
    metrics = json.loads((run / "metrics.json").read_text())
    with (run / "metrics.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["loss"]]

    # the option: it ended the training before trainer.max_steps=6, and knew its run
    assert len(rows) == 4
    assert metrics["step"] <= 4
    assert (run / "stopped.txt").read_text() == "val level0/map@r 3"

    # the loss: 16 classes, 3 levels, 93 images in the bank, 2 neighbors, and the squares of the embeddings
    assert all(114 < float(row["loss"]) < 115 for row in rows)

    # the metric
    assert metrics["level0/first_rank"] > 1000
    assert metrics["level2/first_rank"] > 1000

    # a file from anyone must not name modules to run
    line = refused(f"resume={run}", f"hydra.searchpath=[{tmp_path}/my_conf]")
    for name in ("users_option.StopAfter", "users_loss.Squeeze", "users_metric.first_rank"):
        assert name in line
    here("train", f"resume={run}", "trainer.min_steps=6", "trust=true")
    assert last(run)["global_step"] == 6
