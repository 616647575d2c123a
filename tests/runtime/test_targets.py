"""What a configuration out of a file may build, and what not, however it is spelt."""

import inspect
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
import torch
import yaml
from conftest import ROOT

from dml.runtime.targets import KNOWN, Unknown, is_known, unknown_targets

COMMENT = re.compile(r"(^| )#.*")
PLACES = sorted(KNOWN)


def list_targets(content: Any, part: str) -> Iterator[tuple[str, str]]:
    """Yield each ``_target_`` below a part of a configuration with that part."""
    if isinstance(content, dict):
        if "_target_" in content:
            yield content["_target_"], part
        for key, value in content.items():
            yield from list_targets(value, part or re.sub(r".*@|\..*", "", str(key)))
    elif isinstance(content, list):
        for value in content:
            yield from list_targets(value, part)


def test_all_that_conf_names_is_known() -> None:
    named: set[tuple[str, str]] = set()
    for path in (ROOT / "conf").rglob("*.yaml"):
        text = path.read_text()
        group = "" if "@package _global_" in text else path.relative_to(ROOT / "conf").parts[0].removesuffix(".yaml")
        group = "" if group in ("train", "launcher") else group
        named |= set(list_targets(yaml.safe_load(text), group))
    named = {(target, part) for target, part in named if part not in ("hydra", "stages")}
    assert len(named) > 60
    assert [found for found in sorted(named) if not is_known(*found)] == []


@pytest.mark.parametrize(
    ("target", "part"),
    [
        ("torch.optim.Adagrad", "optimizer"),
        ("torch.optim.lr_scheduler.OneCycleLR", "scheduler"),
        ("torch.nn.Linear", "model"),
        ("torchvision.transforms.v2.ColorJitter", "transform"),
        ("torchvision.transforms.v2.FiveCrop", "transform"),
        ("pytorch_metric_learning.losses.SupConLoss", "loss"),
        ("dml.data.transforms.and_mirrored", "transform"),
    ],
)
def test_what_may_stand_beside_it_is_known_there_alone(target: str, part: str) -> None:
    assert is_known(target, part)
    assert [place for place in PLACES if is_known(target, place) and place != part] in ([], ["loss"])


DANGEROUS = [
    "builtins.eval",
    "builtins.exec",
    "builtins.__import__",
    "builtins.getattr",
    "eval",
    "os.system",
    "subprocess.Popen",
    "subprocess.run",
    "pickle.loads",
    "importlib.import_module",
    "runpy.run_path",
    "numpy.load",
    "joblib.load",
    "pandas.read_pickle",
    "torch.load",
    "torch.serialization.load",
    "torch.hub.load",
    "torch.jit.load",
    "torch.package.PackageImporter",
    "torch.utils.cpp_extension.load",
    "torch.nn.utils.rnn.torch.load",
    "torch.nn.modules.torch.load",
    "torch.nn.functional.torch.load",
    "torch.nn.Module.load_state_dict",
    "torch.nn.Module.apply",
    "torch.optim.Optimizer.load_state_dict",
    "torch.optim.lr_scheduler.partial",
    "torch.optim.lr_scheduler.types.FunctionType",
    "torchvision.datasets.DatasetFolder",
    "torchvision.datasets.utils.download_url",
    "torchvision.transforms.v2.functional.torch.load",
    "torchvision.transforms.functional",
    "timm.create_model",
    "timm.models.load_checkpoint",
    "timm.models.helpers.load_state_dict",
    "hydra.utils.get_method",
    "hydra.utils.instantiate",
    "hydra.utils.call",
    "functools.partial",
    "operator.attrgetter",
    "pytorch_lightning.LightningModule.load_from_checkpoint",
    "pytorch_lightning.Trainer.fit",
    "pytorch_lightning.callbacks.LambdaCallback",
    "pytorch_lightning.utilities.cloud_io.load",
    "pytorch_lightning.loggers.WandbLogger.download_artifact",
    "pytorch_metric_learning.losses.torch.load",
    "pytorch_metric_learning.utils.common_functions.torch.load",
    "dml.run.builders.instantiate",
    "dml.run.builders.get_class",
    "dml.commands.main",
    "dml.run.sweeps.subprocess.run",
    "dml.models.weights.load_file",
    "dml.models.weights.torch.load",
    "dml.models.networks.torch.load",
    "dml.models.networks.load_file",  # an import of the module, not its own
    "dml.models.networks._load",
    "dml.models.networks.timm.create_model",
    "dml.models.backbone.partial",
    "dml.models.heads.nn",
    "dml.losses.rll.torch.load",
    "dml.losses.nra._ChosenDistances",
    "dml.losses.rll.RankedListLoss.__init__.__globals__",
    "dml.data.readers.csv.csv.reader",
    "dml.data.readers.cars196.loadmat",
    "dml.data.readers.csv.Path",
    "dml.data.transforms.__import__",
    "dml.data.prepared.verification.prepare",
    "dml.data.prepared.cache_build.build",
    "dml.training.checkpoints.read_checkpoint",
    "dml.training.checkpoints.torch.load",
    "dml.training.optimizers.optimizer_by_role.__globals__",
    "datetime.timedelta.__class__",
    "datetime",
    "dml_evil.losses.Loss",
    "dml.losses",
    "dml.losses.nothing.Loss",
    "dml.losses.rll.Nothing",
    "dml.losses.rll.RankedListLoss ",
    " torch.optim.Adam",
    "torch.optim.Adam\n",
    "torch.optim..Adam",
    ".torch.optim.Adam",
    "torch.optim.",
    "",
    "${evil}",
]


@pytest.mark.parametrize("target", DANGEROUS)
def test_what_could_run_code_is_unknown(target: str) -> None:
    assert not any(is_known(target, place) for place in PLACES)


@pytest.mark.parametrize("target", [None, 3, True, ["torch.optim.Adam"], {"_target_": "torch.optim.Adam"}])
def test_a_target_that_is_no_name_is_unknown(target: object) -> None:
    assert not any(is_known(target, place) for place in PLACES)


def test_nothing_is_known_outside_of_the_parts() -> None:
    assert not is_known("torch.nn.Linear", "")
    assert not is_known("torch.nn.Linear", "hydra")
    assert [*unknown_targets({"_target_": "torch.nn.Linear"})] == [Unknown("_target_", "torch.nn.Linear")]


PATHS = re.compile(
    r"(path|file|fname|root|folder|dir|url|uri|checkpoint|filename)(name)?(_or_\w+)?|f|\w*_(path|file|dir|url)"
)
"""Names of parameters that take a path or an address."""

TAKING_PATHS = re.compile(
    r"dml\.data\.readers\.\w+\.read"
    r"|dml\.training\.loggers\.RunFolderWandbLogger"
)
"""What a configuration may name although it takes a path; overrides of a file say no path to write to."""


def list_functions_of_paths(package: str) -> Iterator[str]:
    """Yield the dotted names of all functions and classes of the modules of a package that take a path."""
    for module_name, module in sorted(sys.modules.items()):
        if module is None or module_name.partition(".")[0] != package:
            continue
        for name, value in list(vars(module).items()):
            if callable(value) and not name.startswith("__"):
                try:
                    parameters = inspect.signature(value).parameters
                except (ValueError, TypeError):
                    continue
                if any(PATHS.fullmatch(parameter) for parameter in parameters):
                    yield f"{module_name}.{name}"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("package", "least"), [("torch", 100), ("numpy", 20), ("torchvision", 50), ("timm", 50), ("dml", 200)]
)
def test_no_function_that_takes_a_path_is_known_anywhere(package: str, least: int) -> None:
    import_module(package)
    if package == "dml":
        for path in sorted((ROOT / "dml").rglob("*.py")):
            if path.stem != "__main__":
                import_module(".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"))
    names = {*list_functions_of_paths(package)}
    assert len(names) >= least
    known = {name for name in names for place in PLACES if is_known(name, place)}
    assert [name for name in sorted(known) if not TAKING_PATHS.fullmatch(name)] == []


def test_of_a_library_only_classes_of_the_kind_are_known() -> None:
    allowed = (torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)
    for place, patterns in KNOWN.items():
        for module in [name.removesuffix(".*") for name in patterns if name.endswith(".*") and name[:3] != "dml"]:
            names = [name for name in dir(import_module(module)) if is_known(f"{module}.{name}", place)]
            assert names, module
            assert all(issubclass(getattr(import_module(module), name), allowed) for name in names)


def test_of_this_project_only_a_modules_own_names_are_known() -> None:
    folders = ("losses", "samplers", "models", "data", "ops", "training", "run", "evaluation", "retrieval")
    for path in sorted(path for folder in folders for path in (ROOT / "dml" / folder).rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if path.stem.startswith("__"):
            continue
        for name, value in vars(import_module(module)).items():
            if any(is_known(f"{module}.{name}", place) for place in PLACES):
                assert value.__module__ == module, f"{module}.{name}"


def test_a_target_is_found_wherever_it_stands() -> None:
    evil = {"_target_": "torch.load", "_args_": ["x"], "_partial_": True, "_convert_": "all", "_recursive_": False}
    config = {
        "a": [{"b": [1, [evil]]}],
        "loss": {"_target_": "dml.losses.rll.RankedListLoss", "x": evil, "y": ["${oc.env:HOME}"]},
        "optimizer": {"_target_": "torch.optim.Adam", "_partial_": True},
        "_target_": ["os.system"],
    }
    assert list(unknown_targets(config)) == [
        Unknown("a.0.b.1.0._target_", "torch.load"),
        Unknown("loss.x._target_", "torch.load"),
        Unknown("loss.y.0", "${oc.env:HOME}"),
        Unknown("_target_", "['os.system']"),
    ]


@pytest.mark.parametrize(
    "logger", ["dml.training.loggers.RunFolderWandbLogger", "pytorch_lightning.loggers.WandbLogger"]
)
def test_the_wandb_loggers_take_no_settings_from_a_file(logger: str) -> None:
    wandb = {"_target_": logger, "project": "dml", "save_dir": "x", "offline": True}
    assert list(unknown_targets({"logger": wandb})) == []
    for key in ("settings", "_args_", "experiment"):
        assert list(unknown_targets({"logger": wandb | {key: "x"}})) == [Unknown(f"logger.{key}", "x")]


@pytest.mark.parametrize("logger", ["CSVLogger", "TensorBoardLogger"])
def test_lightnings_loggers_write_below_their_folder_alone(logger: str) -> None:
    settings = {
        "_target_": f"pytorch_lightning.loggers.{logger}",
        "save_dir": "x",
        "name": "tensorboard",
        "version": "",
    }
    assert list(unknown_targets({"logger": settings})) == []
    for key, value in (("name", "/tmp/x"), ("name", ".."), ("version", "../x"), ("sub_dir", "x"), ("log_dir", "x")):
        assert list(unknown_targets({"logger": settings | {key: value}})) == [Unknown(f"logger.{key}", value)]
