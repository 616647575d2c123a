"""logger=wandb: what W&B is given, in place of a run that its own process would write."""

from pathlib import Path
from typing import Any

import pytest
from conftest import SMALL, Here, Refused
from runs import metrics

from dml.training.loggers import RunFolderWandbLogger


class Config(dict[str, Any]):
    def update(self, values: dict[str, Any], allow_val_change: bool) -> None:  # type: ignore[override]
        super().update(values)


class Run:
    """A run of W&B, with what was logged to it."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.id, self.name = settings["id"], settings["name"]
        self.config, self.values = Config(), dict[str, Any]()
        self.log = self.values.update
        self.exit_code: int | None = None

    def finish(self, exit_code: int = 0) -> None:
        import wandb

        wandb.run = None
        self.exit_code = exit_code


@pytest.fixture(autouse=True)
def begun(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """The runs that have begun."""
    import wandb

    runs: list[Run] = []

    def init(**settings: Any) -> Run:
        assert "anonymous" not in settings  # W&B would warn
        wandb.run = Run(settings)
        runs.append(wandb.run)
        return wandb.run

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setattr(wandb, "run", None)
    monkeypatch.setattr(wandb, "init", init)
    monkeypatch.setattr(wandb, "finish", lambda exit_code: wandb.run.finish(exit_code))
    return runs


def test_a_machine_that_wandb_does_not_know_is_told_before_any_data_is_read(
    refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WANDB_MODE")

    def refuse(**_: Any) -> None:
        from wandb.errors import UsageError

        raise UsageError("No API key configured.")

    monkeypatch.setattr("wandb.login", refuse)
    monkeypatch.setattr("dml.run.builders.build_table", lambda *_: pytest.fail("it was told too late"))
    line = refused(*SMALL, "logger=wandb", "logger.loggers.wandb.offline=false")
    assert line.startswith("error: logger=wandb: No API key configured. ")
    assert "logger.loggers.wandb.offline=true" in line
    assert not [*tmp_path.rglob("*.*")]


@pytest.mark.pipeline
def test_wandb_gets_configuration_metrics_and_media_and_goes_on_with_its_run(
    here: Here, small_emoji: Path, tmp_path: Path, begun: list[Run]
) -> None:
    arguments = [*SMALL, "trainer.max_steps=2", "trainer.val_check_interval=2", "evaluation.raw=false", "logger=wandb"]
    arguments += ["evaluation.clustering=false", "model.heads=[H]", f"dataset.root={small_emoji}"]
    here("train", *arguments, "evaluation.report={neighbors:6,map:false,seed:0}", f"hydra.run.dir={tmp_path}")
    here("train", f"resume={tmp_path}", "logger=wandb", "trainer.max_steps=3")
    first, second = begun
    assert first.id == second.id == (tmp_path / "wandb_id.txt").read_text().strip()
    assert first.exit_code == second.exit_code == 0
    assert first.config["loss"]["margin"] == 0.4
    assert [run.config["trainer"]["max_steps"] for run in begun] == [2, 3]
    assert second.values["trainer/global_step"] == 3
    for name, value in metrics(tmp_path).items():
        if isinstance(value, float):
            assert second.values[f"test/{name}"] == value, name
    assert second.values["test/step"] == metrics(tmp_path)["step"]
    assert "val/level0/recall@1" in first.values
    assert type(second.values["retrieval"]).__name__ == "Image"
    assert type(second.values["report"]).__name__ == "Html"


def test_a_failed_run_of_a_sweep_leaves_the_next_one_its_own(tmp_path: Path, begun: list[Run]) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        RunFolderWandbLogger(str(tmp_path / name), offline=True, project="dml").log_metrics({"loss": 1.0}, 1)
    again = RunFolderWandbLogger(str(tmp_path / "b"), offline=True, project="dml")  # a later stage
    again.log_metrics({"loss": 0.5}, 2)
    again.finalize("failed")
    failed, other = begun
    assert failed.id != other.id
    assert (failed.values["loss"], failed.exit_code) == (1.0, 1)
    assert (other.values["loss"], other.exit_code) == (0.5, 1)
