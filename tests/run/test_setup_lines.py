"""What a training says before its first step."""

from pathlib import Path

import pytest
from conftest import SHORT_RUN, Here

SHORT = [*SHORT_RUN, "trainer.max_steps=1", "trainer.val_check_interval=1", "evaluation.raw=false", "model.heads=[H]"]
SHORT += ["evaluation.sheet=null", "loss=lns", "sampler=local_neighborhood", "sampler.batch_size=8"]
SHORT = [override for override in SHORT if not override.startswith(("sampler.classes", "sampler.images"))]
RANDOM = "warning  random weights with frozen batch normalization; model.backbone.weights=FILE begins with trained ones"


def test_random_weights_have_a_line_before_the_first_step(
    here: Here, small_emoji: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    network = ["model=resnet18", "model.backbone.weights=null", "model.backbone.freeze_batchnorm=all"]
    here("train", *SHORT, *network, f"dataset.root={small_emoji}", f"hydra.run.dir={tmp_path / 'lns'}")
    before, _, validated = capfd.readouterr().out.partition("\nval  ")
    lines = before.splitlines()
    assert [line for line in lines if line.startswith("warning")] == [RANDOM]
    assert not [line for line in lines if line.startswith("k-means")]  # it takes no time here
    assert "nmi " in validated.splitlines()[0]
    assert "H-AP" in validated
