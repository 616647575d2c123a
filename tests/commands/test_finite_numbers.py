import pytest
from omegaconf import OmegaConf

from dml.commands.training_checks import check_finite
from dml.runtime.errors import InputError

INFINITE, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    "content",
    [
        {"loss": {"_target_": "my_losses.X", "margin": INFINITE}},
        {"loss": {"terms": {"a": {"_target_": "my_losses.X", "margins": [1.0, -INFINITE]}}}},
        {"checkpoints": {"every_n_seconds": INFINITE}},
        {"loss": {"margin": "${other}"}},
    ],
)
def test_what_may_be_infinite(content: dict[str, object]):
    check_finite(OmegaConf.create({**content, "other": 1.0}))


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ({"loss": {"_target_": "my_losses.X", "margin": NAN}}, r"loss\.margin=nan"),
        ({"loss": {"_target_": "my_losses.X", "miner": {"_target_": "dml.X", "a": INFINITE}}}, r"loss\.miner\.a=inf"),
        ({"transform": {"train": [{"_target_": "torchvision.X", "p": INFINITE}]}}, r"transform\.train\[0\]\.p=inf"),
        ({"checkpoints": {"every_n_seconds": NAN}}, r"checkpoints\.every_n_seconds=nan"),
        ({"training": {"ema": NAN}}, r"training\.ema=nan"),
    ],
)
def test_what_may_not_be_infinite(content: dict[str, object], line: str):
    with pytest.raises(InputError, match=rf"^{line}: must be a finite number$"):
        check_finite(OmegaConf.create(content))
