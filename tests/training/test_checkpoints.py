from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from dml.runtime.errors import InputError
from dml.training.callbacks.checkpoints import AtomicCheckpointIO
from dml.training.checkpoints import FORMAT, load_model, read_checkpoint


def checkpoint(weights: torch.Tensor, step: int = 3) -> dict[str, Any]:
    return {"state_dict": {"model.weight": weights, "losses.H.proxies": torch.ones(2)}, "global_step": step, "run": {}}


def test_a_checkpoint_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "new" / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint(checkpoint(torch.arange(3.0)), path)
    assert torch.equal(read_checkpoint(path)["state_dict"]["model.weight"], torch.arange(3.0))
    assert [file.name for file in path.parent.iterdir()] == ["last.ckpt"]


def test_a_death_while_writing_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint(checkpoint(torch.zeros(3)), path)

    def half(_: Any, file: Any) -> None:
        file.write(b"half of a checkpoint")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", half)
    with pytest.raises(KeyboardInterrupt):
        AtomicCheckpointIO().save_checkpoint(checkpoint(torch.ones(3)), path)
    assert torch.equal(read_checkpoint(path)["state_dict"]["model.weight"], torch.zeros(3))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_weights_gone_bad_do_not_replace_good_ones(tmp_path: Path, bad: float) -> None:
    path = tmp_path / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint(checkpoint(torch.zeros(3)), path)
    with pytest.raises(InputError, match=r"step 7: 1 weights became NaN or infinite, such as model\.weight"):
        AtomicCheckpointIO().save_checkpoint(checkpoint(torch.tensor([0.0, bad, 0.0]), step=7), path)
    assert read_checkpoint(path)["global_step"] == 3


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("executed",))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"state_dict": {}, "run": Evil()}, "damaged, or no checkpoint"),
        ({"state_dict": {}, "run": {}, "global_step": 1}, "not a checkpoint of a dml run in format"),
        ({"state_dict": {}, "run": {}, "global_step": 1, "format": FORMAT + 1}, f"in format {FORMAT}, which"),
        ({"weights": torch.ones(1)}, "not a checkpoint of a dml run"),
        (
            {"state_dict": {}, "run": {"overrides": [1]}, "global_step": 1, "format": FORMAT},
            "not a checkpoint of a dml run",
        ),
        ({"state_dict": [], "run": {}, "global_step": 1, "format": FORMAT}, "not a checkpoint of a dml run"),
        ([1, 2], "not a checkpoint of a dml run"),
    ],
)
def test_other_files_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: Any, expected: str
) -> None:
    path = tmp_path / "some.ckpt"
    torch.save(content, path)
    with pytest.raises(InputError, match=expected):
        read_checkpoint(path)
    assert capsys.readouterr().out == ""


def test_only_the_model_is_loaded_and_it_must_fit(tmp_path: Path) -> None:
    path = tmp_path / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint(checkpoint(torch.full((1, 3), 2.0)), path)
    model = nn.Linear(3, 1, bias=False)
    load_model(model, path)
    assert torch.equal(model.weight, torch.full((1, 3), 2.0))
    with pytest.raises(InputError, match="of another model: 1 of its weights"):
        load_model(nn.Linear(3, 1), path)
    with pytest.raises(InputError, match="of another model: 1 of its weights"):
        load_model(nn.Linear(4, 1, bias=False), path)
