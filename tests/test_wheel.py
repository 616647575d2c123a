"""The package as a wheel, without the checkout: a user's own folder, configurations and loss."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import PLAIN, ROOT
from omegaconf import OmegaConf
from runs import last, metrics

LOSS = """
import torch

class Squeeze(torch.nn.Module):
    def __init__(self, strength):
        super().__init__()
        self.strength = strength

    def forward(self, embeddings, labels):
        return self.strength * embeddings.square().mean()
"""
SHORT = [
    *PLAIN,
    "trainer.accelerator=cpu",
    "trainer.max_steps=2",
    "trainer.val_check_interval=2",
    "evaluation.heads=false",
]

pytestmark = pytest.mark.pipeline

Installed = Callable[..., str]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the wheel was installed to; it was built of a copy that holds what the repository holds."""
    folder = tmp_path_factory.mktemp("wheel")
    source, site = folder / "source", folder / "site"
    source.mkdir()
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("dml", "conf"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    offline = ["--no-deps", "--no-index"]
    subprocess.run([*pip, "wheel", *offline, "--no-build-isolation", f"--wheel-dir={folder}", source], check=True)
    (wheel,) = folder.glob("*.whl")
    subprocess.run([*pip, "install", *offline, f"--target={site}", wheel], check=True)
    shutil.rmtree(source)
    return site


@pytest.fixture
def installed(site: Path, tmp_path: Path) -> Installed:
    """installed("-m", "dml", "train", ...): what Python prints with the wheel, in a folder with a user's files."""
    (tmp_path / "my_losses.py").write_text(LOSS)
    (tmp_path / "my_conf" / "loss").mkdir(parents=True)
    (tmp_path / "my_conf" / "loss" / "squeeze.yaml").write_text("_target_: my_losses.Squeeze\nstrength: 0.5\n")

    def installed(*arguments: str | Path) -> str:
        environment = os.environ | {"PYTHONPATH": str(site)}
        command = [sys.executable, *arguments]
        done = subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return installed


OWN = ["hydra.searchpath=[my_conf]", "loss=squeeze", "loss.strength=0.25"]
"""What chooses the user's loss."""


@pytest.mark.thorough
@pytest.mark.distributed
def test_a_wheel_starts_processes_and_evaluates(
    installed: Installed, site: Path, small_emoji: Path, tmp_path: Path
) -> None:
    # a run of a sweep that trains on several devices is started as a process of its own, which starts the second one
    swept = ["-m", "trainer=ddp", "trainer.devices=2", "hydra.sweep.dir=sweep"]
    installed(site / "bin" / "dml", "train", *swept, *OWN, f"dataset.root={small_emoji}", *SHORT)
    run = tmp_path / "sweep" / "0"
    assert last(run)["global_step"] == 2
    assert OmegaConf.load(run / ".hydra" / "config.yaml").loss == {"_target_": "my_losses.Squeeze", "strength": 0.25}

    # the checkpoint says where the user's configurations are, which is believed if the user says so
    told = [f"checkpoint={run}/checkpoints/last.ckpt", "trust=true", "trainer.devices=1", "hydra.run.dir=again"]
    installed("-m", "dml", "evaluate", *told)
    expected, again = metrics(run), metrics(tmp_path / "again")
    levels = [name for name in expected if name.startswith("level")]
    assert levels
    assert [again[name] for name in levels] == pytest.approx([expected[name] for name in levels])


def files_below(folder: Path) -> set[str]:
    """The files at any depth, but what Python compiled."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"}


def test_a_wheel_holds_all_that_the_checkout_does(site: Path, installed: Installed) -> None:
    assert files_below(site / "dml" / "conf") == files_below(ROOT / "conf")
    assert files_below(site / "dml") >= files_below(ROOT / "dml")
    assert installed("-c", "from dml.run.config_folders import CONF; print(CONF)").strip() == str(site / "dml" / "conf")


COMMANDS = """
import sys
from dml.__main__ import run_command

def run(*arguments):
    sys.argv[1:] = arguments
    run_command()

run("prepare", "dataset=emoji", "dataset.root={emoji}", "dataset.counts=null", "data.cache=cache", "processes=1")
run("train", "dataset.root={emoji}", "hydra.run.dir=run", {short}, "evaluation.report={{neighbors:3,map:false,seed:0}}")
run("compare", "run", "--csv", "tables/table.csv")
run("study", "rll-V", "list")
run("study", "rll-V", "page")
run("study", "leaderboard", "rows=rll", "--commands")
"""


@pytest.mark.thorough
def test_a_wheel_has_all_commands(installed: Installed, site: Path, small_emoji: Path, tmp_path: Path) -> None:
    assert installed(site / "bin" / "dml") == installed("-m", "dml", "--help")
    # in one process, as loading the libraries takes longer than all the rest
    script = COMMANDS.format(emoji=small_emoji, short=", ".join(map(repr, SHORT)))
    printed = installed("-c", script)
    assert "python -m dml train experiment=leaderboard/emoji loss=rll" in printed
    for page in ("run/report.html", "tables/table.csv", "outputs/tables/rll-V.md"):
        assert (tmp_path / page).exists()
    assert "RLL, Table V" in printed
