"""The benchmark against other libraries: its page, its driver, and that all peers do the same work.

Nothing here needs the environments of the other libraries.
"""

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

import bench_peers
import numpy as np
import pytest
import torch
from bench_peers import CONTIGUOUS, MEASUREMENTS, PEERS, REQUIREMENTS, RESULTS
from configurations import compose, settings_of
from conftest import ROOT
from hydra.utils import instantiate
from peers import exporting, page, parts, protocol
from peers.dml_peer import list_overrides
from peers.protocol import Job, StepClock

from dml.run import builders
from dml.runtime.errors import InputError


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """A job whose data would lie in the test's folder."""
    return Job(
        task="train",
        folder=str(tmp_path),
        size=64,
        steps=8,
        warm_up=3,
        interval=2,
        target=0.5,
        workers=1,
        threads=1,
        channels_last=False,
        results=str(tmp_path / "results.json"),
        started=0.0,
    )


def make_run(peer: str, **values: Any) -> dict[str, Any]:
    """A measured process of a peer."""
    return {"peer": peer, "task": "train", "data": "emoji", "round": 0, **values}


def test_the_page_has_the_tables_of_the_results() -> None:
    measured = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert page.format_page(measured) in bench_peers.PAGE.read_text(encoding="utf-8")
    page.check_agreement(measured["runs"])
    assert {run["peer"] for run in measured["runs"]} == {*PEERS, CONTIGUOUS}
    assert {(run["task"], run["data"]) for run in measured["runs"]} == {item[:2] for item in MEASUREMENTS}


def test_peers_that_disagree_are_refused() -> None:
    runs = [make_run("dml", weights=100.0), make_run("pml", weights=100.0), make_run("oml", weights=None)]
    page.check_agreement(runs)
    with pytest.raises(InputError, match=r"emoji: weights of st is 101.0, that of dml 100.0"):
        page.check_agreement([*runs, make_run("st", weights=101.0)])
    recalls = {"dml": 0.5, "st": 0.51}
    with pytest.raises(InputError, match="exported_recall@1 of st"):
        page.check_agreement([make_run(peer, **{"exported_recall@1": recall}) for peer, recall in recalls.items()])


def test_the_clock_leaves_out_the_warm_up(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, times = StepClock(job), iter([9.0, 20.0, 30.0, 31.0, 32.0, 33.0, 34.0, 35.0])
    monkeypatch.setattr(protocol, "perf_counter", lambda: next(times))
    monkeypatch.setattr(protocol, "time", lambda: 7.0)
    for _ in range(job.steps):
        assert not clock.is_done
        clock.add_step()
    assert clock.is_done
    assert clock.summarize() == {"images_per_s": 60.0, "first_step_s": 7.0}


def test_the_environments_share_the_versions_of_what_is_compared() -> None:
    shared = ("torch", "torchvision", "timm", "pytorch-metric-learning")
    pins = [
        dict(re.findall(r"^([\w.-]+)==(\S+)$", (REQUIREMENTS / f"{peer}.txt").read_text(), flags=re.MULTILINE))
        for peer in PEERS
        if peer != "dml"
    ]
    constraints = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE))
    assert all(pin[name] == constraints[name] for pin in pins for name in shared)


def test_all_have_the_same_loss() -> None:
    config = compose(f"loss={protocol.LOSS}")
    [ours] = builders.build_losses(settings_of(config), {"H": protocol.EMBED_DIM}, np.arange(4)[:, None]).values()
    theirs = parts.MinedLoss()
    draws = torch.Generator().manual_seed(0)
    embeddings, labels = torch.randn(12, protocol.EMBED_DIM, generator=draws), torch.arange(12) // 3
    assert theirs(embeddings, labels).item() == pytest.approx(ours(embeddings, labels).item(), rel=1e-5)


@pytest.mark.networks
def test_all_have_the_same_network_and_optimizer(job: Job, tmp_path: Path) -> None:
    config = compose(*list_overrides(job))
    ours = builders.build_model(settings_of(config)).eval()
    exporting.write_weights(tmp_path, ours)
    theirs = parts.Network(job).eval()
    pixels = torch.randint(0, 256, (2, 3, 64, 64), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    normalize = parts.build_transform(64, is_training=False).transforms[-2:]
    with torch.no_grad():
        expected, embeddings = ours(pixels)["H"], theirs(normalize[1](normalize[0](pixels)))
    torch.testing.assert_close(embeddings, expected, rtol=1e-4, atol=1e-4)
    settings = [
        {key: value for key, value in group.items() if key not in ("params", "name")}
        for optimizer in (instantiate(config.optimizer)(ours.parameter_groups), parts.build_optimizer(theirs))
        for group in optimizer.param_groups
    ]
    assert settings == [settings[0]] * len(settings)


def test_the_driver_runs_the_peers_and_adds_up_what_they_write(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules: list[str] = []

    def run_process(module: str, python: Path, job: Job, *arguments: str) -> dict[str, Any]:
        modules.append(module)
        return {"counts": {"train": 3}, "weights": 1.0, "images_per_s": 5.0, "versions": {"python": "3"}}

    monkeypatch.setattr(bench_peers, "run_process", run_process)
    monkeypatch.setattr(bench_peers, "find_python", lambda *_: Path(sys.executable))
    options: argparse.Namespace = bench_peers.parse_options(["--quick", "--environments", str(tmp_path)])
    measured = json.loads(json.dumps(bench_peers.measure(options)))
    assert modules[:6] == ["exporting", "dml_peer", "dml_peer", "pml_peer", "oml_peer", "st_peer"]
    assert {run["data"] for run in measured["runs"]} == {"emoji"}
    assert "| dml | 5 | – |" in page.format_page(measured)
