"""Interpolations of stored configurations, and runs that are told apart by their values."""

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from dml.commands.compare import compare_runs
from dml.run.stored_configuration import resolve_environment, resolve_values
from dml.runtime.files import write_text
from dml.runtime.run_folder import RunFolder

CONFIG = {
    "seed": 3,
    "size": 112,
    "lr": "${oc.select:model.lr,3.0e-4}",
    "resize": "${resize_for:${size}}",
    "steps": [{"size": "${size}"}, "${resize}"],
    "proxies": "${init}",
    "init": {"of": "${size}"},
    "name": "${hydra:runtime.choices.loss}",
    "data": {"split": "${seed}", "folder": "fold_${seed}"},
    "missing": "???",
    "nothing": None,
}


def test_values_that_do_not_follow_from_the_seed_are_resolved() -> None:
    assert resolve_values(CONFIG, unresolved="seed") == {
        **CONFIG,
        "lr": 3e-4,
        "resize": 128,
        "steps": [{"size": 112}, 128],
        "proxies": {"of": 112},
        "init": {"of": 112},
    }
    assert resolve_values({"lr": "${rate}", "rate": "${seed}"}, unresolved="seed") == {
        "lr": "${rate}",
        "rate": "${seed}",
    }


def test_the_environment_of_later_is_not_that_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LR", "0.5")
    stored = {"lr": "${oc.decode:${oc.env:LR}}", "head": {"lr": "${lr}"}, "sizes": ["${oc.env:LR}"], "seed": 1}
    assert resolve_values(stored, unresolved="seed") == stored


def test_values_of_the_environment_are_those_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LR", "0.5")
    monkeypatch.delenv("UNSET", raising=False)
    config = {
        "lr": "${oc.decode:${oc.env:LR}}",
        "head": {"lr": "${lr}", "size": "${resize_for:${oc.decode:${ oc.env:SIZE,224}}}"},
        "roots": [
            "${oc.env:LR}/x",
            {"missing": "???", "unset": "${oc.env:UNSET}", "list": "${oc.decode:${oc.env:L,[1]}}"},
        ],
        "name": "${hydra:runtime.choices.loss}",
        "logger": {"key": "${oc.env:LR}"},
        "trainer": {"devices": "${oc.env:LR}", "max_steps": "${oc.decode:${oc.env:STEPS,7}}"},
        "hydra": {"dir": "${oc.env:LR}"},
    }
    assert resolve_environment(OmegaConf.create(config)) == {
        **config,
        "lr": 0.5,
        "head": {"lr": "${lr}", "size": 256},
        "roots": ["0.5/x", {"missing": "???", "unset": "${oc.env:UNSET}", "list": [1]}],
        "trainer": {"devices": "${oc.env:LR}", "max_steps": 7},
    }


def write_run(folder: Path, seed: int, rate: Any, overrides: list[str]) -> None:
    config = {"seed": seed, "optimizer": {"lr": rate}, "data": {"seed": "${seed}"}}
    run = RunFolder(folder)
    hydra = {"hydra": {"runtime": {"choices": {"dataset": "emoji", "loss": "rll"}}}}
    run.write_configuration(*map(OmegaConf.to_yaml, (config, hydra, overrides)))
    write_text(run.metrics_file, f'{{"level0/recall@1": 0.{seed}}}')


def test_a_run_that_names_the_default_is_like_one_that_leaves_it_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "a", 1, "${oc.select:model.pretraining.lr,3.0e-4}", ["seed=1"])
    write_run(tmp_path / "b", 2, 3e-4, ["seed=2", "optimizer.lr=3e-4"])
    compare_runs([str(tmp_path)])
    (row,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ") and " 15.0 " in line]
    assert row.split("|")[2].strip() == "2"
    write_run(tmp_path / "c", 3, 1e-4, ["seed=3", "optimizer.lr=1e-4"])
    compare_runs([str(tmp_path)])
    printed = capsys.readouterr().out
    assert "| optimizer.lr=0.0001 | 1 | 30.0 |" in printed
    assert "| optimizer.lr=0.0003 | 2 | 15.0 ± " in printed
