"""Experiments of `conf/experiment`: composed, recognised, and made small."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from dml.ops.nested import flat, is_below
from dml.run.config_folders import CONF
from dml.run.cost import steps
from dml.run.stored import as_stored, key_of
from dml.run.tables import Training

HOW = ("seed", "data", "logger", "sweep", "dataset.root", "trainer.accelerator", "trainer.devices", "trainer.strategy")
"""Keys that tell apart runs of one training, or say how it is computed; all others say what it is."""


def compose(training: Training) -> DictConfig:
    """The configuration of an experiment with its overrides, as ``train.py`` would have it."""
    values = [override for override in training.overrides if _is_value(override)]
    choices = tuple(override for override in training.overrides if not _is_value(override))
    config = _composed(training.experiment, choices).copy()
    for override in OverridesParser.create().parse_overrides(values):
        OmegaConf.update(config, override.key_or_group, override.value())
    return config


def _is_value(override: str) -> bool:
    """Whether it sets a value of a group, which is quick, and doesn't choose one, which is composed anew."""
    return "." in key_of(override) and override[0] not in "+~"


@cache
def _composed(experiment: str, choices: tuple[str, ...]) -> DictConfig:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return hydra_compose("train", overrides=[f"experiment={experiment}", *choices])


def identity(config: DictConfig) -> str:
    """What a training is, whatever it is called: the same for configurations that differ in `HOW` alone.

    A key that is null says nothing: an option that is added later leaves finished runs theirs.
    """
    values = {key: _number(value) for key, value in flat(as_stored(config)).items() if value is not None}
    values = {key: value for key, value in values.items() if not is_below(key, HOW)}
    values.setdefault("trainer.deterministic", "warn")  # which null stands for on a CPU, and once was the default
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]


def _number(value: Any) -> Any:
    """10.0 is 10."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def smoke(training: Training) -> Training:
    """The same experiment on the embedded data: a small network, small batches and a thousandth of the steps.

    Heads, loss, the sampler's class, optimizer, schedule and stages stay the experiment's own.
    """
    small = dict(_smoke(compose(training)))
    kept = [override for override in training.overrides if key_of(override) not in small]
    return replace(training, overrides=(*kept, *(f"{key}={value}" for key, value in small.items())))


SMALL = {
    "dataset": "emoji",
    "transform": "emoji",
    "model": "tf_efficientnet_lite0",
    "model.backbone.weights": "packaged",
    "trainer.precision": "32-true",
    "trainer.max_epochs": "null",
    "trainer.val_check_interval": "null",
    "trainer.check_val_every_n_epoch": "null",
    "evaluation.raw": "false",
    "evaluation.sheet": "null",
    "evaluation.report": "null",
    "data.num_workers": "0",
    "data.pin_memory": "false",
}


def _smoke(config: DictConfig) -> Iterator[tuple[str, Any]]:
    yield from SMALL.items()
    yield "model.embed_dim", _shrunk(config.model.embed_dim)
    yield "trainer.max_steps", max(2, steps(config) // 1000)
    if config.scheduler.warmup_steps or config.scheduler.warmup_epochs:
        yield "scheduler.warmup_steps", 1
        yield "scheduler.warmup_epochs", "null"
    yield from _small_batches("sampler", config.sampler)
    yield from _fewer_levels(config.loss)
    for name in config.evaluation.other_labels:  # those of images that aren't there
        yield f"evaluation.other_labels.{name}", "null"
    if weights := config.evaluation.level_weights:
        yield "evaluation.level_weights", [*weights, 0.0, 0.0][:3]
    for name, own in config.stages.items():
        if length := OmegaConf.select(own, "trainer.max_steps"):
            yield f"stages.{name}.trainer.max_steps", max(2, length // 1000)
        yield from _small_batches(f"stages.{name}.sampler", own.get("sampler") or {})


def _fewer_levels(loss: Any) -> Iterator[tuple[str, Any]]:
    """A loss of emoji's three levels from one of more: coarser ones stand for the coarsest."""
    if margins := loss.get("margins"):
        yield "loss.margins", list(margins[:3])
    for name, term in loss.get("terms", {}).items():
        if term.get("level", 0) > 2:
            yield f"loss.terms.{name}.level", 2


def _shrunk(embed_dim: Any) -> Any:
    """512 -> 64; a size a head in Hydra's grammar."""
    if OmegaConf.is_dict(embed_dim):
        return "{" + ",".join(f"{head}:{_shrunk(size)}" for head, size in embed_dim.items()) + "}"
    return max(4, embed_dim // 8)


def _small_batches(path: str, sampler: Any) -> Iterator[tuple[str, int]]:
    """A fifth of the classes, an even number of them, and up to four images each: emoji's classes have four to six."""
    if "classes_per_batch" in sampler:
        yield f"{path}.classes_per_batch", max(4, sampler.classes_per_batch // 10 * 2)
    for name, most in {"images_per_class": 4, "batch_size": 32, "num_neighbors": 4, "super_level": 2}.items():
        if name in sampler:
            yield f"{path}.{name}", min(most, sampler[name])
