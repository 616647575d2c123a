"""The logic of scripts/check_gpu.py, on the CPU."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import check_gpu
import pytest
import torch
from check_gpu import Checks, Row, find_largest_difference
from conftest import SMALL, Here

OVERRIDES = [override for override in SMALL if not override.startswith(("trainer.", "checkpoints."))]


def one_process(here: Here) -> Callable[[str, Sequence[str]], None]:
    """Runs scripts within this process, which can't start others to train with."""

    def execute(script: str, arguments: Sequence[str]) -> None:
        together = ("trainer=ddp", "trainer.devices=2")
        here(script, *[argument for argument in arguments if argument not in together])

    return execute


@pytest.mark.thorough
def test_all_checks_pass_on_a_cpu(here: Here, small_emoji: Path, tmp_path: Path) -> None:
    overrides = [f"dataset.root={small_emoji}", *OVERRIDES, "evaluation.metrics=[recall]", "model.heads=[H]"]
    rows = [*Checks(tmp_path, "cpu", 2, 12, overrides, one_process(here)).run()]
    assert {row.name: row.verdict for row in rows} == {
        "float32": "ok",
        "bfloat16": "ok",
        "compiled": "ok",
        "resumed": "ok",
        "tested on the CPU": "ok",
        "heads alone": "ok",
        "2 processes": "ok",
    }
    assert [row.remark for row in rows[3:5]] == [f"{what} differ by 0.0e+00 at most" for what in ("weights", "metrics")]


def leaves(metrics: Sequence[dict[str, Any]]) -> Callable[[str, Sequence[str]], None]:
    """Instead of a test, leaves one of the results after the other."""
    left = iter(metrics)

    def execute(script: str, arguments: Sequence[str]) -> None:
        assert script == "evaluate"
        (folder,) = (Path(argument.partition("=")[2]) for argument in arguments if argument.startswith("hydra.run.dir"))
        folder.mkdir()
        (folder / "metrics.json").write_text(json.dumps(next(left)))

    return execute


@pytest.mark.parametrize(("other", "verdict"), [(0.50005, "ok"), (0.502, "failed")])
def test_devices_that_disagree_fail(tmp_path: Path, other: float, verdict: str) -> None:
    tested = [{"recall@1": 0.5, "split": "test"}, {"recall@1": other, "split": "test"}]
    checks = Checks(tmp_path, "cuda", 1, 12, [], leaves(tested))
    assert checks.check_evaluation("tested").verdict == verdict


def test_a_check_that_fails_leaves_the_others(tmp_path: Path) -> None:
    def execute(script: str, arguments: Sequence[str]) -> None:
        raise OSError("no\n such device")

    rows = [*Checks(tmp_path, "cuda", 1, 12, [], execute).run()]
    assert [row.verdict for row in rows] == [*["failed"] * 6, "skipped"]
    assert rows[0] == Row("float32", "failed", "no such device")


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        ({"a": torch.tensor([1, 2.5]), "b": 3, "c": "x"}, 0.5),
        ({"a": torch.tensor([1, torch.nan]), "b": 3, "c": "x"}, float("inf")),
        ({"a": torch.tensor([1, 2.0]), "c": "y"}, float("inf")),
        ({"a": torch.tensor([1, 2.0]), "b": 3, "c": "y"}, 0.0),
    ],
)
def test_the_largest_difference(second: dict[str, Any], expected: float) -> None:
    assert find_largest_difference({"a": torch.tensor([1, 2.0]), "b": 3, "c": "x"}, second) == expected


def test_without_a_gpu_one_line_says_what_would_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["check_gpu.py"])
    with pytest.raises(SystemExit, match="error: no CUDA GPU; --accelerator cpu --small"):
        check_gpu.main()
