"""What a configuration out of a file may build, and what not, however it is spelt."""

import re
from importlib import import_module
from pathlib import Path

import pytest
import torch
from conftest import ROOT

from dml.ops.configuration.targets import SUBCLASSES, Unknown, is_known, unknown_targets

NAMED = re.compile(r"_target_: *([^ ,}\s]+)")
COMMENT = re.compile(r"(^| )#.*")


def targets_in(folder: Path) -> set[str]:
    return {target for path in folder.rglob("*.yaml") for target in NAMED.findall(COMMENT.sub("", path.read_text()))}


def test_all_that_conf_names_is_known() -> None:
    targets = targets_in(ROOT / "conf")
    assert len(targets) > 60
    hydra_callback = "dml.commands.start.sweep_start.SweepStart"  # below hydra, of which no file may say anything
    assert [target for target in sorted(targets - {hydra_callback}) if not is_known(target)] == []


@pytest.mark.parametrize(
    "target",
    [
        "torch.optim.Adagrad",
        "torch.optim.lr_scheduler.OneCycleLR",
        "torch.nn.Linear",
        "torchvision.transforms.v2.ColorJitter",
        "torchvision.transforms.v2.FiveCrop",
        "pytorch_metric_learning.losses.SupConLoss",
        "dml.data.transforms.and_mirrored",
    ],
)
def test_what_may_stand_beside_it_is_known(target: str) -> None:
    assert is_known(target)


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
    "dml.training.checkpointing.checkpoints.read_checkpoint",
    "dml.training.checkpointing.checkpoints.torch.load",
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
    assert not is_known(target)


@pytest.mark.parametrize("target", [None, 3, True, ["torch.optim.Adam"], {"_target_": "torch.optim.Adam"}])
def test_a_target_that_is_no_name_is_unknown(target: object) -> None:
    assert not is_known(target)


def test_of_a_library_only_classes_of_the_kind_are_known() -> None:
    allowed = (torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)
    for module in SUBCLASSES:
        names = [name for name in dir(import_module(module)) if is_known(f"{module}.{name}")]
        assert names, module
        assert all(issubclass(getattr(import_module(module), name), allowed) for name in names)


def test_of_this_project_only_a_modules_own_names_are_known() -> None:
    folders = ("losses", "samplers", "models", "data", "ops", "training", "run", "evaluation", "retrieval")
    for path in sorted(path for folder in folders for path in (ROOT / "dml" / folder).rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if path.stem.startswith("__"):
            continue
        for name, value in vars(import_module(module)).items():
            if is_known(f"{module}.{name}"):
                assert value.__module__ == module, f"{module}.{name}"


def test_a_target_is_found_wherever_it_stands() -> None:
    evil = {"_target_": "torch.load", "_args_": ["x"], "_partial_": True, "_convert_": "all", "_recursive_": False}
    config = {
        "a": [{"b": [1, [evil]]}],
        "loss": {"_target_": "dml.losses.rll.RankedListLoss", "x": evil},
        "stages": {"s": {"loss._target_": "os.system"}},
        "fine": {"_target_": "torch.optim.Adam", "_partial_": True},
        "_target_": ["os.system"],
    }
    assert list(unknown_targets(config)) == [
        Unknown("a.0.b.1.0._target_", "torch.load"),
        Unknown("loss.x._target_", "torch.load"),
        Unknown("stages.s.loss._target_", "os.system"),
        Unknown("_target_", "['os.system']"),
    ]


@pytest.mark.parametrize(
    "logger", ["dml.training.loggers.wandb_logger.RunFolderWandbLogger", "pytorch_lightning.loggers.WandbLogger"]
)
def test_the_wandb_loggers_take_no_settings_from_a_file(logger: str) -> None:
    wandb = {"_target_": logger, "project": "dml", "save_dir": "x", "offline": True}
    assert list(unknown_targets({"logger": wandb})) == []
    for key in ("settings", "_args_", "experiment"):
        assert list(unknown_targets({"logger": wandb | {key: "x"}})) == [Unknown(f"logger.{key}", "x")]
