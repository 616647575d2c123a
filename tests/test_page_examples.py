"""The examples of README, docs and CONTRIBUTING run as they stand there, on small data and with tiny trainings."""

import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from configurations import compose
from conftest import ROOT, SMALL
from PIL import Image
from runs import last, train
from small_emoji import SUBGROUPS, slice_of_emoji

import dml
from dml.__main__ import dispatch
from dml.run.checks import check
from dml.runtime.run_folder import RunFolder, folders_below, newest_runs

pytestmark = pytest.mark.pipeline

JOBS = ("train", "evaluate", "prepare", "inspect")
"""The commands that Hydra composes: of those that don't run here, the values are checked."""

NOT_RUN = {
    "^make ": "tests/studies and tests/test_bench.py run the engines, .ci/run the targets",
    r"^(\.venv/bin/)?pip ": "installs packages",
    "^source ": "the tests have an environment",
    "^python3 -m venv": "the tests have an environment",
    "^cd ": "each page has a folder",
    "^kill ": "tests/test_signals.py",
    "^dml serve": "ends at Ctrl-C: tests/inference/serving",
    "^curl ": "needs dml serve: tests/inference/serving",
    "^torchrun ": "several machines",
    "trainer=ddp": "all GPUs of a machine: tests/training/test_distributed_gradients.py",
    "training.compile=true": "compiles for a GPU, for minutes",
    "^python -c": "asks for a GPU",
    "=/data": "the benchmarks' images",
    "--data ": "the benchmarks' images",
    "experiment=lns": "tests/test_experiments.py trains each",
    r"resnet18\]": "weights to download: tests/models builds the networks",
    "model=resnet50": "weights to download",
    "model=timm": "weights to download",
    "model=dinov2": "weights to download",
    "model=vit_small": "weights to download",
    "launcher=joblib": "tests/run/test_sweeps.py",
    "--ray": "starts a cluster: tests/commands/test_ray_embedding.py",
    "^dml study": "tests/studies",
    r"mteb\.get_task": "downloads a benchmark: tests/inference/test_mteb_encoder.py",
    "push_to_hub": "uploads: tests/inference/test_hub.py",
    "psycopg": "a server of PostgreSQL",
}
"""A pattern of each example that can't run here, and the reason, or the tests that run the same."""

REPLACED = {
    r"outputs/\w+/rll/(TIME|[-\d_]{19})|outputs/\.\.\.": "outputs/RUN",
    r"checkpoint=\.\.\.": "checkpoint=outputs/RUN/checkpoints/best.ckpt",
    "OTHER": "mine",
    "sampler: n_pair": "sampler: class_balanced",
    r"max_steps: \d+": "max_steps: 2",
    'url="http://localhost:6333"': 'path="qdrant"',
    "http://localhost:6333": "qdrant",
    "http://localhost:19530": "milvus.db",
    " --root /data": "",
}
"""What stands for a value of the reader's, and for a server, as a pattern, with the value here."""

SMALL_EMOJI = ["dataset.root=emoji.zip", "dataset.counts=null"]
SMALL_NETWORK = [word for word in SMALL if word.startswith("model")]
WITHOUT_PICTURES = ["evaluation.report=null", "evaluation.sheet=null", "evaluation.raw=false"]
"""Overrides for pages that don't look at the report, in a third of the time."""

WITH_REPORTS = ("own_data.md", "python.md")

SHRUNK = {
    "transform.size": "transform.size=32",
    "trainer.max_steps": "trainer.max_steps=2",
    "scheduler.warmup_steps": "scheduler.warmup_steps=1",
    "sampler.classes_per_batch": "sampler.classes_per_batch=20",
    "sweep": "hydra.sweeper.n_trials=2",
}
"""For keys of the pages whose values take minutes, the overrides that follow them."""

TINY = [word for word in SMALL if not word.startswith(("dataset.", "sampler.", "evaluation.", "model"))]
TINY += ["trainer.max_steps=2", "trainer.val_check_interval=2"]
"""Overrides before those of a page, which make a run take seconds; data, batches and evaluation stay."""


class Example(NamedTuple):
    """A command or a block of a page, and the name of the file that a block is, if it is one."""

    language: str
    text: str
    file: str = ""


def read_examples(page: Path) -> list[Example]:
    """List the commands and the blocks of a page in their order."""
    examples = []
    blocks = re.findall(r"^ *```(\w+)\n(.*?)^ *```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    for language, text in blocks:
        if language == "console":
            lines = re.findall(r"^\$ (.*)$", text.replace("\\\n", " "), re.MULTILINE)
            examples += [Example(language, re.sub(r"\s+# .*", "", line)) for line in lines]
        elif language in ("python", "yaml", "diff"):
            first = re.match(r"(?:# @package _global_\n)?# (\S+\.(?:py|yaml))\n", text)
            examples.append(Example(language, textwrap.dedent(text), first[1] if first else ""))
    return examples


PAGES = {page.name: read_examples(page) for page in [*ROOT.glob("*.md"), *sorted((ROOT / "docs").glob("*.md"))]}
DOCS = [name for name, examples in PAGES.items() if examples and name not in ("README.md", "CONTRIBUTING.md")]


class Reader:
    """Somebody who does in a folder what a page says, in its order."""

    def __init__(self, folder: Path, patched: pytest.MonkeyPatch, more: Sequence[str] = ()) -> None:
        self.folder, self.more = folder, more
        self.given = give_names()
        self.module = ""  # the last one that was written
        self.names: dict[str, Any] = {"dml": dml}
        patched.chdir(folder)
        patched.syspath_prepend(str(folder))
        patched.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
        patched.setattr(sys, "argv", ["dml"])
        patched.setattr(dml, "train", partial(self.train, dml.train))
        for name in [name for name in sys.modules if name.startswith("my_")]:  # a file of another page
            patched.delitem(sys.modules, name)

    def train(self, function: Callable[..., Any], words: Sequence[str], **options: Any) -> Any:
        """Call `dml.train` with overrides that make the run tiny."""
        return function(self.shrink(words, has_table="table" in options), **options)

    def shrink(self, words: Sequence[str], *, has_table: bool = False) -> list[str]:
        """Return the overrides of a page's training, between those that make it tiny."""
        data = [word for word in words if word.startswith("dataset")]
        network = [] if any(word.startswith("model=") for word in words) else SMALL_NETWORK
        emoji = [] if has_table or (data and data != ["dataset=emoji"]) else SMALL_EMOJI
        keys = {word.partition("=")[0] for word in words}
        sizes = [size for key, size in SHRUNK.items() if key in keys]
        return [*TINY, *network, *self.more, *emoji, *words, *sizes]

    def follow(self, examples: Sequence[Example]) -> None:
        """Write each example's file, execute its Python, or run its command; check the values of what can't run."""
        for example in examples:
            text = self.fill_in(example.text)
            if any(re.search(pattern, example.text) for pattern in NOT_RUN):
                check_values(example)
            elif example.file:
                path = self.folder / example.file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
                self.module = path.stem if path.suffix == ".py" else self.module
            elif example.language == "python":
                self.names |= self.given
                exec(compile(text, "page", "exec"), self.names)
            elif example.language == "console":
                self.run(text)
            else:
                raise AssertionError(f"neither a file nor a command: {text}")

    def fill_in(self, text: str) -> str:
        """Replace what stands for a value of the reader's; a run is that of the shelf, or else the newest."""
        run = "outputs/RUN"
        if not Path(run).exists() and (newest := next(newest_runs(self.folder / "outputs"), None)):
            run = str(newest.path)
        for pattern, value in REPLACED.items():
            text = re.sub(pattern, value.replace("outputs/RUN", run), text)
        return text

    def run(self, command: str) -> None:
        """Run a command of dml in this process, and another in a shell."""
        program, name, *words = shlex.split(command)
        if program not in ("dml", "python") or name == "-m":
            subprocess.run(command, shell=True, check=True)
            return
        name = Path(name).stem
        is_new = name == "train" and not any(word.startswith("resume=") for word in words)
        dispatch([name, *(self.shrink(words) if is_new else words)])
        if is_new and any("my_conf" in word for word in words):
            checkpoint = last(next(newest_runs(self.folder / "outputs")).path)
            assert checkpoint["global_step"] == 2
            assert self.module in str(checkpoint["run"])  # it is the example that was trained


def check_values(example: Example) -> None:
    """Compose the configuration of a command that doesn't run here, and check its values."""
    words = shlex.split(example.text) if example.language == "console" else []
    if len(words) > 1 and (name := Path(words[1]).stem) in JOBS:
        # of a sweep, the first value of each key
        values = [word if "[" in word else word.split(",")[0] for word in words[2:] if word != "-m"]
        check(name, compose(*values, command=name))


class MyLoss(torch.nn.Module):
    """A loss of the reader's."""

    def __init__(self, margin: float) -> None:
        super().__init__()
        self.margin = margin

    def forward(self, embeddings: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return self.margin * embeddings.square().mean()


def give_names() -> dict[str, Any]:
    """Return what the Python of the pages takes as there; paths are those of the folder `photos`."""
    import pandas as pd

    generator = torch.Generator().manual_seed(0)
    vectors = torch.nn.functional.normalize(torch.randn(96, 8, generator=generator)).numpy()
    paths = [f"photos/class{label:02}/{number}.jpg" for label in range(24) for number in range(4)]
    classes = [Path(path).parent.name for path in paths]
    return {
        "MyLoss": MyLoss,
        "network": torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten()),
        "embeddings": torch.from_numpy(vectors).requires_grad_(),
        "labels": torch.arange(96) // 4,
        "queries": torch.from_numpy(vectors[:32]),
        "query_labels": torch.arange(32) // 4,
        "gallery": torch.from_numpy(vectors[32:]),
        "gallery_labels": torch.arange(64) // 8,
        "vectors": vectors,
        "paths": paths,
        "frame": pd.DataFrame({"path": paths, "label": classes}),
    }


def draw_images(folder: Path, classes: int, images: int, suffix: str) -> None:
    """Write noise around a color for each class, in one folder for each."""
    generator = np.random.default_rng(0)
    for label in range(classes):
        (folder / f"class{label:02}").mkdir(parents=True)
        color = generator.integers(0, 200, 3)
        for number in range(images):
            pixels = (color + generator.integers(0, 56, (40, 40, 3))).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"class{label:02}" / f"{number}{suffix}")


def draw_shelf(folder: Path) -> None:
    """Make what the pages name without a training: folders of small images, and lists of them."""
    for name, classes, images, suffix in (
        ("mine", 24, 4, ".jpg"),
        ("photos", 24, 4, ".jpg"),
        ("more_photos", 4, 2, ".jpg"),
        ("images", 60, 4, ".png"),
    ):
        draw_images(folder / name, classes, images, suffix)
    for name in ("photo.jpg", "elephant.jpg", "query.jpg", "a.jpg", "one.jpg", "other.png"):
        shutil.copy(folder / "mine" / "class00" / "0.jpg", folder / name)
    shutil.copy(folder / "mine" / "class01" / "0.jpg", folder / "b.jpg")
    frame = give_names()["frame"].replace("^photos", "mine", regex=True)
    for name in ("mine.csv", "list.csv"):
        frame.to_csv(folder / name, index=False)


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the pages name: two runs, folders of small images, and lists."""
    shelf = tmp_path_factory.mktemp("shelf")
    draw_shelf(shelf)
    slice_of_emoji(shelf / "emoji.zip", [*SUBGROUPS, "sky-weather"])
    run = shelf / "outputs" / "RUN"
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(shelf)
        train(run, *TINY, *SMALL_NETWORK, *SMALL_EMOJI)
        train(shelf / "new_model", *TINY, *SMALL_NETWORK, *SMALL_EMOJI, "seed=1")
    (shelf / "dml" / "data" / "assets").mkdir(parents=True)
    shutil.copy(ROOT / "dml" / "data" / "assets" / "emoji.zip", shelf / "dml" / "data" / "assets")
    shutil.copytree(run, shelf / "outputs" / "emoji" / "rll" / "2026-11-23_10-00-00")
    return shelf


def test_the_readme_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw_shelf(tmp_path)
    reader = Reader(tmp_path, monkeypatch)
    reader.follow(PAGES["README.md"])
    assert reader.names["scores"].shape == (1, 8)
    assert Path("found.png").exists()
    assert len(dml.load("my_model").embed("mine")) == len(reader.names["vectors"]) == 96


@pytest.mark.thorough
@pytest.mark.parametrize("page", DOCS)
def test_a_page_is_followed(
    shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(shelf, tmp_path, dirs_exist_ok=True)
    examples = PAGES[page]
    if page == "using.md":  # whose second block makes the images
        examples = sorted(examples, key=lambda example: not re.match("ln|cp|mv|python -m", example.text))
        for name in ("photos", "more_photos", "outputs/RUN"):
            shutil.rmtree(tmp_path / name)
    reader = Reader(tmp_path, monkeypatch, [] if page in WITH_REPORTS else WITHOUT_PICTURES)
    if page == "training_options.md":
        reader.run("dml embed outputs/RUN emoji.zip --output teacher.parquet")
    reader.follow(examples)
    runs = [*folders_below(tmp_path / "outputs"), *folders_below(tmp_path / "multirun")]
    assert all(run.is_finished for run in runs)
    if page == "own_data.md":
        trained = [run for run in runs if not (shelf / run.path.relative_to(tmp_path)).exists()]
        assert len(trained) == 8  # the quick one, one, three of a sweep, one on all classes, of a folder and of a list
        assert all(run.report_file.exists() for run in trained)
        assert [run.metrics()["split"] for run in trained].count("val") == 1
        printed = capfd.readouterr().out
        assert "its metrics say nothing" in printed
        assert all(f"loss={loss}" in printed for loss in ("rll", "multi_similarity", "proxy_anchor"))


def test_what_is_not_run_stands_on_a_page() -> None:
    texts = [example.text for examples in PAGES.values() for example in examples]
    assert [pattern for pattern in NOT_RUN if not any(re.search(pattern, text) for text in texts)] == []


@pytest.mark.thorough
def test_what_contributing_adds_works_in_a_copy_of_the_tree(shelf: Path, tmp_path: Path) -> None:
    for name in ("conf", "dml", "scripts", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for example in PAGES["CONTRIBUTING.md"]:
        if example.file:
            (tmp_path / example.file).write_text(example.text)
        elif example.language == "diff":
            apply_diff(example.text, tmp_path)
    words = [*TINY, *SMALL_NETWORK, *WITHOUT_PICTURES, f"dataset.root={shelf / 'emoji.zip'}", "dataset.counts=null"]
    words += ["loss=pull", "evaluation.metrics=[recall,reciprocal_rank]", "hydra.run.dir=run"]
    commands = [["count", str(shelf / "mine")], ["train", *words]]
    follow = f"from dml.__main__ import dispatch\nfor command in {commands}: dispatch(command)"
    python = [sys.executable, "-W", "ignore"]
    done = subprocess.run([*python, "-c", follow], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("96\n")
    assert "level0/reciprocal_rank" in RunFolder(tmp_path / "run").metrics()
    assert "dml.losses.pull.PullLoss" in str(last(tmp_path / "run")["run"])
    laws = [*python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/losses/test_laws.py", "-k", "pull"]
    done = subprocess.run(laws, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def apply_diff(text: str, tree: Path) -> None:
    """Insert the lines of a page's diff, which may be there, below the lines that it shows, or at the end of a file."""
    for part in re.split(r"^ # (?=\S+\.(?:py|yaml))", text, flags=re.MULTILINE)[1:]:
        head, *lines = part.splitlines()
        path = tree / head.partition(":")[0]
        code, anchor = path.read_text() if path.exists() else "", ""
        for is_added, group in groupby(lines, lambda line: line.startswith("+")):
            block = "".join(f"{line[1:]}\n" for line in group)
            if not is_added:
                assert f"\n{block}" in code, block
                anchor = block
            elif any(line.partition(" # ")[0] not in code for line in block.splitlines()):
                code = code.replace(anchor, anchor + block, 1) if anchor else f"{code}\n\n{block}"
        path.write_text(code)
