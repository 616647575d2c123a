"""One door: what a configuration out of a file may build, however it is spelt, and one function that builds it."""

import inspect
import re
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from importlib import import_module
from typing import Any

import pytest
import torch
import yaml
from conftest import ROOT
from hydra.errors import InstantiationException
from omegaconf import OmegaConf

from dml.data.transforms import Resize
from dml.run.building import KNOWN, Foreign, build, find_foreign, is_known, trusting
from dml.runtime.errors import InputError

PLACES = sorted(KNOWN)
RESIZE = {"_target_": "dml.data.transforms.Resize", "mode": "warp", "size": "${size}"}


def test_hydras_instantiate_is_called_in_one_place() -> None:
    callers = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "dml").rglob("*.py"))
        if re.search(
            r"hydra\.utils|\binstantiate\(|hydra\._internal(?!\.utils import get_args_parser)", path.read_text()
        )
    ]
    assert callers == ["dml/run/building.py"]


def test_references_are_resolved_before_they_are_built() -> None:
    config = OmegaConf.create({"size": 28, "transform": {"test": RESIZE, "list": [RESIZE]}})
    built = build(config.transform.test)
    assert isinstance(built, Resize)
    assert built.size == 28
    assert build(config.transform.list)[0].size == 28


def test_arguments_and_other_values() -> None:
    assert build(None) is None
    assert build("rll") == "rll"
    config = OmegaConf.create({"trainer": {"_target_": "datetime.timedelta", "_partial_": True}})
    made = build(config.trainer, minutes=2)
    assert isinstance(made, partial)
    assert made() == timedelta(minutes=2)


def test_an_error_names_the_whole_key() -> None:
    config = OmegaConf.create({"transform": {"test": {**RESIZE, "size": 28, "color": 3}}})
    with pytest.raises(InstantiationException, match=r"full_key: transform\.test"):
        build(config.transform.test)


@pytest.mark.parametrize(
    ("node", "named"),
    [
        ({"_target_": "collections.Counter"}, "loss._target_=collections.Counter"),
        ("${other}", "other._target_=collections.Counter"),
        ({"x": [{"y": "${other}"}]}, "loss.x.0.y._target_=collections.Counter"),
        ({"_target_": "${name}"}, "loss._target_=collections.Counter"),
        ({"_target_": "dml.data.transforms.Resize"}, "loss._target_=dml.data.transforms.Resize"),
        ({"x": "${dollar}{name}"}, r"loss.x=\$\{name\}"),
    ],
)
def test_what_is_unknown_is_not_built(node: object, named: str) -> None:
    config = OmegaConf.create(
        {"loss": node, "other": {"_target_": "collections.Counter"}, "name": "collections.Counter", "dollar": "$"}
    )
    with pytest.raises(InputError, match=f"{named} could run any code, or write anywhere"):
        build(config.loss)


def test_what_the_user_trusts_is_built() -> None:
    config = OmegaConf.create({"loss": {"_target_": "collections.Counter"}})
    with trusting(True):
        assert build(config.loss) == Counter()
        with trusting(False), pytest.raises(InputError, match="could run any code"):
            build(config.loss)
    with pytest.raises(InputError, match="could run any code"):
        build(config.loss)


@pytest.mark.parametrize(
    ("part", "value", "refused"),
    [
        ("logger", {"loggers": {"x": {"_target_": "pytorch_lightning.loggers.WandbLogger"}}}, ["loggers.x._target_"]),
        ("data", {"cache": "/tmp/x", "num_workers": 0, "background": "white"}, ["cache"]),
        ("data", {"cache": "auto"}, []),
        ("data", {"cache": None}, []),
        ("training", {"compile": {"mode": "max-autotune", "options": {"cpp.cxx": ["evil"]}}}, ["compile.options"]),
        ("training", {"compile": {"backend": "inductor"}}, ["compile.backend"]),
        ("training", {"compile": True}, []),
        ("trainer", {"_target_": "pytorch_lightning.Trainer", "profiler": "simple", "plugins": None}, ["profiler"]),
        ("trainer", {"_target_": "pytorch_lightning.Trainer", "default_root_dir": "x"}, ["default_root_dir"]),
        (
            "trainer",
            {"strategy": {"_target_": "pytorch_lightning.strategies.DDPStrategy", "ddp_comm_hook": "x", "timeout": 3}},
            ["strategy.ddp_comm_hook"],
        ),
    ],
)
def test_a_file_sets_the_listed_arguments_alone(part: str, value: object, refused: list[str]) -> None:
    assert [found.path for found in find_foreign({part: value})] == [f"{part}.{name}" for name in refused]


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


@pytest.mark.pipeline
def test_all_that_conf_names_is_known() -> None:
    named: set[tuple[str, str]] = set()
    for path in (ROOT / "conf").rglob("*.yaml"):
        text = path.read_text()
        group = "" if "@package _global_" in text else path.relative_to(ROOT / "conf").parts[0].removesuffix(".yaml")
        group = "" if group in ("train", "launcher") else group
        named |= set(list_targets(yaml.safe_load(text), group))
    named = {(target, part) for target, part in named if part not in ("hydra", "stages", "logger")}
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
    *("builtins.eval", "builtins.exec", "builtins.__import__", "builtins.getattr", "eval", "os.system"),
    *("subprocess.Popen", "subprocess.run", "pickle.loads", "importlib.import_module", "runpy.run_path"),
    *("numpy.load", "joblib.load", "pandas.read_pickle", "torch.load", "torch.serialization.load", "torch.hub.load"),
    *("torch.jit.load", "torch.package.PackageImporter", "torch.utils.cpp_extension.load"),
    *("torch.nn.utils.rnn.torch.load", "torch.nn.modules.torch.load", "torch.nn.functional.torch.load"),
    *("torch.nn.Module.load_state_dict", "torch.nn.Module.apply", "torch.optim.Optimizer.load_state_dict"),
    *("torch.optim.lr_scheduler.partial", "torch.optim.lr_scheduler.types.FunctionType"),
    *("torchvision.datasets.DatasetFolder", "torchvision.datasets.utils.download_url"),
    *("torchvision.transforms.v2.functional.torch.load", "torchvision.transforms.functional", "timm.create_model"),
    *("timm.models.load_checkpoint", "timm.models.helpers.load_state_dict", "hydra.utils.get_method"),
    *("hydra.utils.instantiate", "hydra.utils.call", "functools.partial", "operator.attrgetter"),
    *("pytorch_lightning.LightningModule.load_from_checkpoint", "pytorch_lightning.Trainer.fit"),
    *("pytorch_lightning.callbacks.LambdaCallback", "pytorch_lightning.utilities.cloud_io.load"),
    *("pytorch_lightning.loggers.WandbLogger.download_artifact", "pytorch_metric_learning.losses.torch.load"),
    *("pytorch_metric_learning.utils.common_functions.torch.load", "dml.run.builders.instantiate"),
    *("dml.run.builders.get_class", "dml.commands.main", "dml.run.sweeps.subprocess.run"),
    *("dml.models.weights.load_file", "dml.models.weights.torch.load", "dml.models.networks.torch.load"),
    *("dml.models.networks.load_file", "dml.models.networks._load", "dml.models.networks.timm.create_model"),
    *("dml.models.backbone.partial", "dml.models.heads.nn", "dml.losses.rll.torch.load"),
    *("dml.losses.nra._ChosenDistances", "dml.losses.rll.RankedListLoss.__init__.__globals__"),
    *("dml.data.readers.csv.csv.reader", "dml.data.readers.cars196.loadmat", "dml.data.readers.csv.Path"),
    *("dml.data.transforms.__import__", "dml.data.prepared.verification.prepare"),
    *("dml.data.prepared.cache_build.build", "dml.training.checkpoints.read_checkpoint"),
    *("dml.training.checkpoints.torch.load", "dml.training.optimizers.optimizer_by_role.__globals__"),
    *("datetime.timedelta.__class__", "datetime", "dml_evil.losses.Loss", "dml.losses", "dml.losses.nothing.Loss"),
    *("dml.losses.rll.Nothing", "dml.losses.rll.RankedListLoss ", " torch.optim.Adam", "torch.optim.Adam\n"),
    *("torch.optim..Adam", ".torch.optim.Adam", "torch.optim.", "", "${evil}"),
]


def test_what_could_run_code_is_unknown_and_so_is_what_is_no_name() -> None:
    no_names = (None, 3, True, ["torch.optim.Adam"], {"_target_": "torch.optim.Adam"})
    assert [target for target in (*DANGEROUS, *no_names) for place in PLACES if is_known(target, place)] == []


def test_nothing_is_known_outside_of_the_parts() -> None:
    assert not is_known("torch.nn.Linear", "")
    assert not is_known("torch.nn.Linear", "hydra")
    assert [*find_foreign({"_target_": "torch.nn.Linear"})] == [Foreign("_target_", "torch.nn.Linear")]


PATHS = re.compile(
    r"(path|file|fname|root|folder|dir|url|uri|checkpoint|filename)(name)?(_or_\w+)?|f|\w*_(path|file|dir|url)"
)
"""Names of parameters that take a path or an address."""

TAKING_PATHS = re.compile(r"dml\.data\.readers\.\w+\.read")
"""What a configuration may name although it takes a path, which it reads."""


def takes_a_path(value: Any) -> bool:
    try:
        return any(PATHS.fullmatch(parameter) for parameter in inspect.signature(value).parameters)
    except (ValueError, TypeError):
        return False


@pytest.mark.pipeline
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("package", "least"), [("torch", 100), ("torchvision", 20), ("dml", 100)])
def test_no_function_that_takes_a_path_is_known_anywhere(package: str, least: int) -> None:
    """Of all modules of the packages that a file may name parts of."""
    import_module(package)
    if package == "dml":
        for path in sorted((ROOT / "dml").rglob("*.py")):
            if path.stem != "__main__":
                import_module(".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"))
    modules = {name: module for name, module in sys.modules.items() if name.split(".")[0] == package and module}
    objects = {f"{name}.{key}": value for name, module in modules.items() for key, value in list(vars(module).items())}
    beginnings = tuple(pattern.partition("*")[0] for patterns in KNOWN.values() for pattern in patterns)
    known = {
        name: value
        for name, value in objects.items()
        if name.startswith(beginnings) and any(is_known(name, place) for place in PLACES)
    }
    assert len(known) >= least
    found = sorted(name for name, value in known.items() if callable(value) and takes_a_path(value))
    assert [name for name in found if not TAKING_PATHS.fullmatch(name)] == []


@pytest.mark.pipeline
def test_of_a_library_only_classes_of_the_kind_are_known() -> None:
    allowed = (torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)
    for place, patterns in KNOWN.items():
        for module in [name.removesuffix(".*") for name in patterns if name.endswith(".*") and name[:3] != "dml"]:
            names = [name for name in dir(import_module(module)) if is_known(f"{module}.{name}", place)]
            assert names, module
            assert all(issubclass(getattr(import_module(module), name), allowed) for name in names)


@pytest.mark.pipeline
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
    assert list(find_foreign(config)) == [
        Foreign("a.0.b.1.0._target_", "torch.load"),
        Foreign("loss.x._target_", "torch.load"),
        Foreign("loss.y.0", "${oc.env:HOME}"),
        Foreign("_target_", "['os.system']"),
    ]
