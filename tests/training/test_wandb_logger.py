"""logger=wandb, offline: what W&B would be sent, read from the file that it leaves."""

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import wandb
from conftest import SMALL, Here, Refused
from runs import metrics

from dml.training.loggers import RunFolderWandbLogger

BLOCK, HEADER = 32768, struct.Struct("<IHB")
FULL, LAST = 1, 4


def logged(path: Path) -> Iterator[Any]:
    """The records of a .wandb file: LevelDB's log format, blocks of pieces of protocol buffers."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, place, record = path.read_bytes(), 7, b""  # seven bytes name the format
    while place + HEADER.size <= len(content):
        left = BLOCK - place % BLOCK
        if left < HEADER.size:
            place += left
            continue
        _, length, kind = HEADER.unpack_from(content, place)
        place += HEADER.size
        if place + length > len(content):  # it is being written
            return
        record += content[place : place + length]
        place += length
        if kind in (FULL, LAST):
            yield Record.FromString(record)
            record = b""


def finished(path: Path, within: float = 30) -> list[Any]:
    """The records of a run that has ended: W&B's own process may write the last ones a moment later."""
    end = time.monotonic() + within
    while time.monotonic() < end:
        records = list(logged(path))
        if any(record.WhichOneof("record_type") == "exit" for record in records):
            return records
        time.sleep(0.05)
    raise AssertionError(f"{path}: the run has not ended")


class Sent:
    """What a .wandb file holds.

    Args:
        folder: offline-run-...
    """

    def __init__(self, folder: Path) -> None:
        self.media = folder / "files"
        self.id = ""
        self.config: dict[str, Any] = {}
        self.values: dict[str, Any] = {}
        for record in finished(next(folder.glob("*.wandb"))):
            self.id = record.run.run_id or self.id
            for update in (*record.run.config.update, *record.config.update):
                self.config[update.key or update.nested_key[0]] = json.loads(update.value_json)
            for item in record.history.item:
                self.values["/".join(item.nested_key) or item.key] = json.loads(item.value_json)
            if record.WhichOneof("record_type") == "exit":
                self.exit_code = record.exit.exit_code


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """W&B without a network, and with all that it writes in a folder of the test."""
    named = {"MODE": "offline", "SILENT": "true", "ERROR_REPORTING": "false", "DATA_DIR": "data", "CACHE_DIR": "cache"}
    for name, value in named.items():
        monkeypatch.setenv(f"WANDB_{name}", str(tmp_path / value) if name.endswith("_DIR") else value)


def test_a_machine_that_wandb_does_not_know_is_told_before_any_data_is_read(
    refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WANDB_MODE")

    def refuse(**_: Any) -> None:
        raise wandb.errors.UsageError("No API key configured. Use `wandb login` to log in.")

    monkeypatch.setattr(wandb, "login", refuse)
    monkeypatch.setattr("dml.run.builders.build_table", lambda *_: pytest.fail("it was told too late"))
    line = refused(*SMALL, "logger=wandb", "logger.loggers.wandb.offline=false")
    assert line.startswith("error: logger=wandb: No API key configured. Use `wandb login` to log in. ")
    assert line.endswith(" logger.loggers.wandb.offline=true sends the run later")
    assert not [*tmp_path.rglob("*.*")]


@pytest.mark.thorough
def test_wandb_gets_configuration_metrics_and_media_and_goes_on_with_its_run(
    here: Here, small_emoji: Path, tmp_path: Path
) -> None:
    tiny = [*SMALL, "trainer.max_steps=2", "trainer.val_check_interval=2", "evaluation.raw=false"]
    arguments = [
        *tiny,
        f"dataset.root={small_emoji}",
        "logger=wandb",
        "evaluation.clustering=false",
        "evaluation.heads=false",
    ]
    media = ["evaluation.report={neighbors:6,map:false,seed:0}"]
    run = tmp_path / "run"
    here("train", *arguments, *media, f"hydra.run.dir={run}")
    here("train", f"resume={run}", "trainer.max_steps=3")

    first, second = (
        Sent(folder) for folder in sorted(run.glob("wandb/offline-run-*"), key=lambda path: path.stat().st_mtime_ns)
    )
    assert first.id == second.id == (run / "wandb_id.txt").read_text().strip()
    assert first.exit_code == second.exit_code == 0
    assert first.config["loss"]["margin"] == 0.4
    assert [sent.config["trainer"]["max_steps"] for sent in (first, second)] == [2, 3]
    for name, value in metrics(run).items():
        if isinstance(value, float):
            assert second.values[f"test/{name}"] == value, name
    assert second.values["test/step"] == metrics(run)["step"]
    assert "val/level0/recall@1" in first.values

    assert second.values["retrieval/_type"] == "image-file"
    assert (second.media / second.values["retrieval/path"]).read_bytes() == (run / "retrieval.png").read_bytes()
    assert second.values["report/_type"] == "html-file"
    assert (second.media / second.values["report/path"]).read_text() == (run / "report.html").read_text()


@pytest.mark.pipeline
def test_a_failed_run_of_a_sweep_leaves_the_next_one_its_own(tmp_path: Path) -> None:
    loggers = []
    for name in "ab":
        (tmp_path / name).mkdir()
        loggers.append(RunFolderWandbLogger(str(tmp_path / name), offline=True, project="dml"))
        loggers[-1].log_metrics({"loss": 1.0}, 1)
    again = RunFolderWandbLogger(str(tmp_path / "b"), offline=True, project="dml")  # a later stage
    again.log_metrics({"loss": 0.5}, 2)
    again.finalize("failed")
    failed, other = (Sent(next((tmp_path / name).glob("wandb/offline-run-*"))) for name in "ab")
    assert failed.id != other.id
    assert (failed.values["loss"], failed.exit_code) == (1.0, 1)
    assert (other.values["loss"], other.exit_code) == (0.5, 1)
