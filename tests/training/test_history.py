import csv
from pathlib import Path

from dml.training.history import History


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_row_a_step_and_a_column_a_metric(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    history = History(path)
    history.log_metrics({"loss": 0.5}, step=0)
    history.log_metrics({"loss": 0.25}, step=1)
    history.log_metrics({"val/recall@1": 0.75}, step=1)
    history.finalize("success")
    assert rows(path) == [
        {"step": "1", "loss": "0.5", "val/recall@1": ""},
        {"step": "2", "loss": "0.25", "val/recall@1": "0.75"},
    ]


def test_a_validation_is_on_disk_at_once(tmp_path: Path) -> None:
    history = History(tmp_path / "metrics.csv")
    history.log_metrics({"val/recall@1": 0.75}, step=4)
    assert rows(tmp_path / "metrics.csv")[0]["step"] == "5"


def test_a_resumed_run_keeps_what_it_goes_on_from(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    first = History(path)
    for step in range(4):
        first.log_metrics({"loss": float(step)}, step=step)
    first.save()
    second = History(path, resumed_at=2)
    second.log_metrics({"loss": 9.0}, step=2)
    second.save()
    assert [(row["step"], row["loss"]) for row in rows(path)] == [("1", "0.0"), ("2", "1.0"), ("3", "9.0")]


def test_a_new_run_starts_a_new_history(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("step,loss\n1,0.5\n")
    history = History(path)
    history.log_metrics({"loss": 2.0}, step=0)
    history.save()
    assert [row["loss"] for row in rows(path)] == ["2.0"]
