"""The logic of scripts/check_gpu.py, on the CPU."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from check_gpu import CHECKS, Checks, Row, find_largest_difference
from conftest import SMALL, Here

OVERRIDES = [override for override in SMALL if not override.startswith(("trainer.", "checkpoints."))]


@pytest.mark.thorough
def test_all_checks_pass_on_a_cpu(here: Here, small_emoji: Path, tmp_path: Path) -> None:
    def execute(script: str, arguments: Sequence[str]) -> None:  # in this process, which can't start others
        here(script, *[word for word in arguments if word not in ("trainer=ddp", "trainer.devices=2")])

    overrides = [f"dataset.root={small_emoji}", *OVERRIDES, "evaluation.metrics=[recall]", "model.heads=[H]"]
    rows = [*Checks(tmp_path, "cpu", 2, 12, overrides, execute).run()]
    assert {row.name: row.verdict for row in rows} == dict.fromkeys(CHECKS, "ok")
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
    (row,) = Checks(tmp_path, "cuda", 1, 12, [], leaves(tested)).run(["tested"])
    assert row.verdict == verdict


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
