import gc
import importlib.metadata
import logging
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import configurations
import examples  # noqa: F401  loads the Hypothesis profile
import pytest
from forks import ROOT, run_forked
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from quick_hydra import remembering

from dml.__main__ import dispatch
from dml.runtime import files, signals
from dml.runtime.imports import quick_imports

# many small jobs: threads would only wait for each other; set before torch is imported. Milvus leaves threads of gRPC
# behind, which would print a line at each fork of a later test and when the server ends its connection, and Ray's print
# of lost connections; set before grpc is imported.
os.environ |= {"OMP_NUM_THREADS": "1", "COLUMNS": "80", "GRPC_ENABLE_FORK_SUPPORT": "0", "GRPC_VERBOSITY": "NONE"}

sys.path.insert(0, str(ROOT / "scripts"))
from small_emoji import slice_of_emoji

with quick_imports():
    from dml.run.building import trusting
    from dml.run.stored import STORED
    from dml.studies import experiments
    from dml.studies.study_command import run_study

importlib.metadata.entry_points = cache(importlib.metadata.entry_points)  # Lightning reads them for each Trainer

SHORT_RUN = [
    "dataset.counts=null",
    "transform.size=32",
    "model.embed_dim=8",
    "sampler.classes_per_batch=4",
    "sampler.images_per_class=2",
    "data.num_workers=0",
    "trainer.max_steps=6",
    "trainer.val_check_interval=3",
    "trainer.log_every_n_steps=1",
    "checkpoints.every_n_steps=2",
    "evaluation.report=null",
    "heads.initial=null",
    "checkpoints.beginning=false",
    "checkpoints.interpolation=null",
    "heads.choose=false",
]
"""Overrides that make a run of any network take seconds."""

SMALL = [*SHORT_RUN, "model=small_cnn", "model.heads=[L,M,H]", "model.normalize=true"]
"""Overrides that make a run take a second, for tests in which it doesn't matter which network learns.

A later ``model=...`` among the arguments takes the place of this one.
"""


PLAIN = [*SMALL, "evaluation.raw=false", "evaluation.clustering=false", "evaluation.sheet=null"]
"""Overrides of `SMALL` for tests that look at the training and at rankings alone."""

ONE_HEAD = [*PLAIN, "evaluation.heads=false", "evaluation.metrics=[recall]", "model.heads=[H]"]
ONE_HEAD += ["evaluation.threshold=null"]
"""Overrides of `PLAIN` for tests that look at neither heads nor metrics: half of its time."""

PIPELINE_FIXTURES = {"here", "refused", "small_emoji"}
GPU_TESTS = ROOT / "tests" / "gpu"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that runs tests/gpu."""
    parser.addoption(
        "--device", choices=("cuda", "cpu"), help="run tests/gpu on this device; without it no test sees a GPU"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Hide GPUs: what the tests of the CPU compare bit for bit, a GPU may round in another way in each run."""
    if config.getoption("device") is None:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


@pytest.hookimpl(tryfirst=True)  # before -m chooses tests by their markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests that run commands as "pipeline", leave out those of a GPU, and put the files of whole runs first.

    The quick tests are then what a process can still take over from the other at the end. Of the cases of a test with
    the marker "first_cases", those after the first ones are marked as "thorough".
    """
    cases: Counter[str] = Counter()
    for item in items:
        if isinstance(item, pytest.Function) and PIPELINE_FIXTURES & set(item.fixturenames):
            item.add_marker("pipeline")
        if first := item.get_closest_marker("first_cases"):
            test = item.nodeid.partition("[")[0]
            cases[test] += 1
            if cases[test] > first.args[0]:
                item.add_marker("thorough")
    if config.getoption("device") is None and (without := [item for item in items if GPU_TESTS in item.path.parents]):
        items[:] = [item for item in items if GPU_TESTS not in item.path.parents]
        config.hook.pytest_deselected(items=without)
    items.sort(key=lambda item: item.path.parent != ROOT / "tests")


def pytest_collection(session: pytest.Session) -> None:
    """Collect no garbage while the tests and their libraries are imported."""
    if session.config.getoption("numprocesses", None):
        return  # this process hands out the tests
    gc.disable()


def pytest_collection_finish() -> None:
    """Take what is loaded out of the garbage collector's sight: it stays, and copies of this process share it."""
    import torch

    # autograd starts its threads when it is first used, for all devices that are known then; some tests load libraries
    # that know more devices, and a process with such threads can't be copied
    torch.ones(1, requires_grad=True).sum().backward()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _compositions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Compose each configuration once for all processes of the session."""
    session = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        session = session.parent
    folder = session / "compositions"
    folder.mkdir(exist_ok=True)
    results = configurations.SharedResults(folder)
    with pytest.MonkeyPatch.context() as patched, remembering(results):
        for module, name in ((configurations, "_compose_once"), (experiments, "_compose_groups")):
            patched.setattr(module, name, configurations.keep_results(getattr(module, name).__wrapped__, results))
        yield


@pytest.fixture(scope="session", autouse=True)
def _short_waits() -> Iterator[None]:
    """Wait for a shorter time for a lock whose holder is just ending: in tests its holder stays."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(files, "GRACE_PERIOD", 0.1)
        yield


@pytest.fixture(scope="session")
def device(pytestconfig: pytest.Config) -> str:
    """The device that tests/gpu compares with the CPU: "cuda", or "cpu" if its tests are only tried."""
    import torch

    name: str = pytestconfig.getoption("device")
    assert name == "cpu" or torch.cuda.is_available(), "--device cuda: torch finds no CUDA GPU"
    return name


HANDLERS = (logging.StreamHandler, logging.FileHandler)  # Hydra's; pytest's are of subclasses


@pytest.fixture(autouse=True)
def _without_hydra() -> Iterator[None]:
    """Undo Hydra's logging, whose handler writes to a file that pytest closes; forget what it and signals leave."""
    yield
    HydraConfig.instance().cfg = None  # a sweep leaves it
    registered = ConfigStore.instance().repo
    for name in [name for name in registered if name.startswith(STORED)]:
        del registered[name]
    signals.forget()
    for handler in [handler for handler in logging.root.handlers if type(handler) in HANDLERS]:
        logging.root.removeHandler(handler)
        if isinstance(handler, logging.FileHandler):
            handler.close()
    logging.root.setLevel(logging.WARNING)


@pytest.fixture(scope="session")
def small_emoji(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive of a few subgroups of the embedded data set, 39 classes."""
    return slice_of_emoji(tmp_path_factory.mktemp("emoji") / "emoji.zip")


def in_a_process(script: str, *arguments: str) -> str:
    """Runs a script of the project in a process -> what it printed."""
    done = run_forked(script, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


Here = Callable[..., None]
Refused = Callable[..., str]
Printed = Callable[..., str]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Here:
    """Runs a script's command line within this process, which is quicker: here("train", "loss=rll", ...)."""

    def here(command: str, *arguments: str) -> None:
        monkeypatch.setattr(sys, "argv", [f"{command}.py", *arguments])
        dispatch([command, *arguments])

    return here


@pytest.fixture
def refused(here: Here, capfd: pytest.CaptureFixture[str]) -> Refused:
    """refused("loss=rl") -> the one line that a user's error is answered with."""

    def refused(*arguments: object, command: str = "train") -> str:
        with pytest.raises(SystemExit) as stopped:
            here(command, *map(str, arguments))
        assert stopped.value.code == 2
        lines = [line for line in capfd.readouterr().err.splitlines() if line.strip()]
        assert len(lines) == 1, lines
        assert lines[0].startswith("error: ")
        return lines[0]

    return refused


@pytest.fixture
def own_code() -> Iterator[None]:
    """Build objects that dml doesn't know, as a run does that nothing but the command line describes."""
    with trusting(True):
        yield


@pytest.fixture
def printed(capfd: pytest.CaptureFixture[str]) -> Printed:
    """printed("rll-V", "page") -> what ``dml study`` prints, run within this process."""

    def printed(*arguments: str) -> str:
        run_study(arguments)
        return capfd.readouterr().out

    return printed
