"""What commands import before they do their work; a new process tells, as this one has imported everything."""

import gc
import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, SHORT_RUN
from small_embedders import make_model, write_photos

from dml.inference import Index
from dml.runtime.imports import hidden, quick_imports

FOR_NOTHING = {"optuna", "ray", "wandb"}
"""Libraries that neither a start of a training nor a search needs, and that take more than a tenth of a second."""
HEAVY = {"faiss", "hydra", "numpy", "pytorch_lightning", "timm", "torch", "torchmetrics", *FOR_NOTHING}
OF_PACKAGES = {"faiss", "pytorch_metric_learning", "sklearn", "timm", "torch", "torchvision"}
"""Libraries that packages import with the names that need them."""

COMMANDS = """
import json, os, sys

def report():
    print("LOADED", json.dumps(sorted(sys.modules)))

import dml.samplers.class_balanced, dml.losses, dml.metrics, dml.models, dml.retrieval
report()
from dml.losses import RankedListLoss
import dml.metrics.binary, dml.models.heads, dml.retrieval.gallery
report()
from dml.__main__ import dispatch, run_command
index, image, *overrides = ARGUMENTS
sys.argv = ["dml", "search", index, image]
run_command()
report()
from dml.training.module import MetricLearner

def first_step(*_):
    report()
    sys.stdout.flush()
    os._exit(0)

MetricLearner.training_step = first_step
dispatch(["train", *overrides])
"""


@pytest.mark.pipeline
def test_packages_and_commands_import_nothing_heavy_that_they_do_not_need(small_emoji: Path, tmp_path: Path) -> None:
    photos = write_photos(tmp_path, 4)
    Index.build(make_model(), photos).save(tmp_path / "index")
    arguments = [str(tmp_path / "index"), str(photos / "cats" / "00.png"), *SHORT_RUN, "evaluation.raw=false"]
    arguments += [f"dataset.root={small_emoji}", f"hydra.run.dir={tmp_path / 'run'}"]
    script = f"ARGUMENTS = {json.dumps(arguments)}\n{COMMANDS}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.removeprefix("LOADED ") for line in done.stdout.splitlines() if line.startswith("LOADED ")]
    packages, light_modules, searching, training = ({*json.loads(line)} for line in lines)
    assert not packages & OF_PACKAGES
    assert light_modules & OF_PACKAGES == {"torch"}
    assert searching & HEAVY == {"faiss", "hydra", "numpy", "torch"}
    assert training & HEAVY == HEAVY - FOR_NOTHING
    assert "fontManager" not in done.stdout + done.stderr


def test_a_hidden_package_can_be_imported_afterwards() -> None:
    sys.modules.pop("colorsys", None)
    with hidden("colorsys", "json"):
        with pytest.raises(ModuleNotFoundError):
            __import__("colorsys")
        __import__("json")  # which is imported already
    assert __import__("colorsys").rgb_to_hsv(0, 0, 0) == (0, 0, 0)


def test_garbage_is_collected_again_after_the_imports() -> None:
    frozen = gc.get_freeze_count()
    with quick_imports(), quick_imports():
        assert not gc.isenabled()
    assert gc.isenabled()
    assert gc.get_freeze_count() == frozen  # nothing of a body without imports
