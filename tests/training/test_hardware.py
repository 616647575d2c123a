from typing import Any

import pytest
import torch
from configurations import compose as composed
from timm.layers import BatchNormAct2d
from torch import nn

from dml.run.loop import choose_deterministic
from dml.runtime.errors import InputError
from dml.training.data import choose_loader_settings
from dml.training.hardware import check_synchronized, parse_compile


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Any:
    """gpus(4, cores=16): a machine with so many GPUs, and so many cores for this process."""

    def gpus(count: int, cores: int = 16) -> None:
        monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(cores)), raising=False)

    return gpus


def loaded(*overrides: str) -> tuple[int, bool]:
    config = composed(*overrides)
    settings = choose_loader_settings(config.data, config.trainer)
    return settings.num_workers, settings.pin_memory


def test_beside_gpus_each_process_gets_its_cores_but_one(gpus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(0)
    assert loaded() == (1, False)
    gpus(4)
    assert loaded("trainer.accelerator=cpu") == (1, False)
    assert loaded("data.num_workers=2", "data.pin_memory=false") == (2, False)
    numbers = [("1", 8, 7), ("1", 64, 16), ("1", 1, 1), ("auto", 16, 3), ("-1", 16, 3), ("2", 16, 7), ("[0,3]", 16, 7)]
    for devices, cores, workers in (*numbers, ("'0,1,3'", 16, 4)):
        gpus(4, cores)
        assert loaded(f"trainer.devices={devices}") == (workers, True)
    for cores, workers in ((8, 7), (3, 2)):  # srun may bind a task to fewer
        gpus(4, cores)
        monkeypatch.setenv("SLURM_CPUS_PER_TASK", "8")
        assert loaded("trainer.devices=4") == (workers, True)


def test_a_normalization_that_does_more_is_not_synchronized() -> None:
    check_synchronized(nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU()))
    network = nn.Sequential(nn.Conv2d(3, 4, 1), BatchNormAct2d(4))
    assert network(torch.randn(2, 3, 4, 4)).min() >= 0
    replaced = nn.SyncBatchNorm.convert_sync_batchnorm(network)
    assert "BatchNormAct" not in str(replaced)  # it would be another function
    with pytest.raises(InputError, match="would replace 1 by a normalization without what BatchNormAct2d does beside"):
        check_synchronized(nn.Sequential(nn.Conv2d(3, 4, 1), BatchNormAct2d(4)))


def test_deterministic_layers_are_for_cpus_unless_asked_for(gpus: Any) -> None:
    gpus(0)
    assert choose_deterministic(composed().trainer) == "warn"
    gpus(1)
    assert choose_deterministic(composed().trainer) is False
    assert choose_deterministic(composed("trainer.accelerator=cpu").trainer) == "warn"
    assert choose_deterministic(composed("trainer.deterministic=true").trainer) is True
    assert choose_deterministic(composed("trainer.deterministic=warn").trainer) == "warn"


@pytest.mark.pipeline
def test_what_compile_asks_for() -> None:
    for value, expected in ((None, None), (False, None), (True, {}), ({"mode": "default"}, {"mode": "default"})):
        assert parse_compile(value) == expected
    for value, words in (
        ("max-autotune", "arguments of torch.compile: backend,"),
        ({"mod": "max-autotune"}, "arguments of torch.compile: backend,"),
    ):
        with pytest.raises(InputError, match=rf"training.compile=.*: .*{words}"):
            parse_compile(value)
