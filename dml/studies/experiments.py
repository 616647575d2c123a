"""The experiments of `conf/experiment`: composed, identified, described, and made small."""

import pickle
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from dml.report.provenance import UNKNOWN, describe_configuration, describe_measurement
from dml.run.config_folders import CONF
from dml.run.stored import plain_config
from dml.runtime.configuration import flat, is_below, key_of
from dml.runtime.errors import InputError
from dml.runtime.run_folder import configuration_id
from dml.samplers.base import AUTO, AUTO_CLASSES
from dml.studies.study import Training
from dml.training.trainer_arguments import AUTO as OPEN_LENGTH
from dml.training.trainer_arguments import FEWEST_STEPS

SMALL_VALUES = (
    *("dataset=emoji", "transform=emoji", "model=tf_efficientnet_lite0", "model.backbone.weights=packaged"),
    *("trainer.precision=32-true", "trainer.max_epochs=null", "trainer.val_check_interval=null"),
    *("trainer.check_val_every_n_epoch=null", "evaluation.raw=false", "evaluation.sheet=null"),
    *("evaluation.report=null", "data.num_workers=0", "data.pin_memory=false"),
)
"""Overrides of every small experiment."""

IGNORED = ("seed", "data", "dataset.root", "logger", "trainer.accelerator", "trainer.devices", "trainer.strategy")
"""The keys with which another run, or another machine, computes the same training."""

EPOCH = 250
"""Steps that stand for an epoch, whose length follows from the data."""

DESCRIBED_KEYS = ("training", "model", "loss", "heads", "evaluation")
"""The keys of a configuration that the facts of a training are read from."""


def compose(training: Training) -> DictConfig:
    """Compose an experiment with its overrides into the configuration that ``train.py`` would train."""
    values = [override for override in training.overrides if _sets_value(override)]
    group_choices = tuple(override for override in training.overrides if not _sets_value(override))
    config: DictConfig = pickle.loads(_compose_groups(training.experiment, group_choices))  # noqa: S301  pickled below
    for override in OverridesParser.create().parse_overrides(values):
        if override.is_sweep_override():
            raise InputError(f"{override.input_line}: several values, and one is needed")
        OmegaConf.update(config, override.key_or_group, _as_integer(override.value()))
    return config


def identify(config: DictConfig, root: Path | None = None) -> str:
    """Return a hash of what a configuration trains; those of one training share it, but for `IGNORED`.

    ``root`` is that of a data set of the user's own, which its name doesn't tell from others.
    """
    values = {key: _as_integer(value) for key, value in flat(plain_config(config)).items()}
    values = {key: value for key, value in values.items() if not is_below(key, IGNORED)}
    return configuration_id(values | {"dataset.root": str(root)} if root is not None else values)


def describe_training(
    training: Training, heads: tuple[str, ...] = (), metrics: Mapping[str, Any] | None = None
) -> dict[str, str]:
    """Return what the metrics of a training, or of some of its heads, are of by the name of the fact.

    What the metrics of a finished run state goes before the configuration.
    """
    config = compose(training)
    values = {key: config.get(key) for key in DESCRIBED_KEYS}
    plain: dict[str, Any] = {
        key: OmegaConf.to_container(value, resolve=key == "model") if OmegaConf.is_config(value) else value
        for key, value in values.items()
    }
    if heads:
        plain |= {"model": plain["model"] | {"heads": list(heads)}, "heads": {"choose": False}}
    facts = describe_configuration(plain)
    if metrics is None:
        return facts
    stored = describe_measurement(metrics, plain)
    # the stored vector is that of the whole embedding
    known = {name: value for name, value in stored.items() if value != UNKNOWN and not (heads and name == "vector")}
    return facts | known


def count_steps(config: DictConfig) -> int:
    """Return the number of steps of a training, by `EPOCH` for an epoch, and `FEWEST_STEPS` for an open length."""
    trainer = config.trainer
    if trainer.max_epochs is not None:
        return int(trainer.max_epochs * EPOCH)
    return FEWEST_STEPS if trainer.max_steps == OPEN_LENGTH else int(trainer.max_steps)


def shrink(training: Training) -> Training:
    """Return an experiment on the embedded data: a small network, small batches and a thousandth of the steps."""
    return training.extended([*SMALL_VALUES, *(f"{key}={value}" for key, value in _small_values(compose(training)))])


def _sets_value(override: str) -> bool:
    """Return whether an override sets a value, which is quick; one that chooses a group takes a new composition."""
    return "." in key_of(override) and override[0] not in "+~"


@cache
def _compose_groups(experiment: str, group_choices: tuple[str, ...]) -> bytes:
    """Compose an experiment, and pickle it: to read it takes a quarter of the time of a copy."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return pickle.dumps(hydra_compose("train", overrides=[f"experiment={experiment}", *group_choices]))


def _as_integer(value: Any) -> Any:
    """Return a whole float as an integer, so that 10.0 and 10 are the same; anything else as it is."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _small_values(config: DictConfig) -> Iterator[tuple[str, Any]]:
    yield "model.embed_dim", _small_embed_dim(config.model.embed_dim)
    yield "trainer.max_steps", max(2, count_steps(config) // 1000)
    if config.scheduler.warmup_steps or config.scheduler.warmup_epochs:
        yield "scheduler.warmup_steps", 1
        yield "scheduler.warmup_epochs", "null"
    yield from _small_batches("sampler", config.sampler)
    yield from _three_levels(config.loss)
    for name in config.evaluation.other_labels:  # they label images that the embedded data doesn't have
        yield f"evaluation.other_labels.{name}", "null"
    if weights := config.evaluation.level_weights:
        yield "evaluation.level_weights", [*weights, 0.0, 0.0][:3]
    for name, stage in config.stages.items():
        if max_steps := OmegaConf.select(stage, "trainer.max_steps"):
            yield f"stages.{name}.trainer.max_steps", max(2, max_steps // 1000)
        yield from _small_batches(f"stages.{name}.sampler", stage.get("sampler") or {})


def _three_levels(loss: Any) -> Iterator[tuple[str, Any]]:
    """Yield the values that fit a loss to the three levels of emoji; coarser levels become the coarsest of these."""
    if margins := loss.get("margins"):
        yield "loss.margins", list(margins[:3])
    for name, term in loss.get("terms", {}).items():
        if term.get("level", 0) > 2:
            yield f"loss.terms.{name}.level", 2


def _small_embed_dim(embed_dim: Any) -> Any:
    """Return an eighth of the dimensions, such as 64 of 512; for a mapping of heads, a mapping in Hydra's grammar."""
    if OmegaConf.is_dict(embed_dim):
        return "{" + ",".join(f"{head}:{_small_embed_dim(size)}" for head, size in embed_dim.items()) + "}"
    return max(4, embed_dim // 8)


def _small_batches(path: str, sampler: Any) -> Iterator[tuple[str, int]]:
    """Yield a fifth of the classes, an even number, and at most four images each: emoji's classes have four to six."""
    if "classes_per_batch" in sampler:
        classes = AUTO_CLASSES if sampler.classes_per_batch == AUTO else sampler.classes_per_batch
        yield f"{path}.classes_per_batch", max(4, classes // 10 * 2)
    for name, largest in {"images_per_class": 4, "batch_size": 32, "num_neighbors": 4, "super_level": 2}.items():
        if name in sampler:
            yield f"{path}.{name}", min(largest, sampler[name])
