"""The stages of a run: trainings one after the other, each of which goes on with the weights of the one before."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from dml.run.config_folders import CONF
from dml.run.settings import TRAINED, Settings, read_settings
from dml.runtime.errors import InputError

SHARED = ("quick", "resume", "accept_changed_data", "stages", "dataset")
"""The keys that all stages of a run share."""


@dataclass(frozen=True)
class Stage:
    """One training of a run.

    Args:
        name: name of the stage; "" for the only one.
        config: configuration of the run with the changes of the stage.
    """

    name: str
    config: DictConfig

    @property
    def settings(self) -> Settings:
        """The settings of the stage, as they are now."""
        return read_settings(self.config, Settings)


def list_stages(config: DictConfig) -> list[Stage]:
    """Return the stages of a configuration in order; each entry of ``stages`` holds its changes to the rest.

    A part with a ``_target_`` replaces the whole part, anything else changes single values. Without ``stages`` the run
    has one stage.
    """
    return [Stage(str(name), _apply_changes(config, name)) for name in config.stages] or [Stage("", config)]


def check_stages(config: DictConfig, first: Stage) -> None:
    """Make sure that no stage changes what all share, and that a recurrent model begins with a trained network."""
    for number, (name, changes) in enumerate(_list_changes(config).items()):
        for key in changes:
            if key in SHARED:
                raise InputError(f"stages.{name}.{key}: all stages share the run's {key}; give {key} without stages")
            if number and key == "training" and "init" in changes[key]:
                raise InputError(
                    f"stages.{name}.training.init: a later stage goes on with the weights of the one before it"
                )
    settings = first.settings
    if settings.recurrent and not (settings.training.init or settings.resume):
        raise InputError(
            "recurrent: it finds neighbors by a trained network, and the run has none; training.init=CHECKPOINT names "
            "one, or an earlier stage trains it, as in experiment=lns/emoji/rnn"
        )


def find_stage(config: DictConfig, name: str) -> Stage:
    """Return the stage of a name."""
    for stage in list_stages(config):
        if stage.name == name:
            return stage
    raise InputError(
        f"checkpoint of stage {name or '(none)'}: this run's stages are {', '.join(config.stages) or 'none'}"
    )


def _list_changes(config: DictConfig) -> dict[Any, dict[str, Any]]:
    """Return what each stage changes, as plain values."""
    stages: Any = OmegaConf.to_container(config.stages, resolve=False)
    return {name: changes or {} for name, changes in stages.items()}


def _apply_changes(config: DictConfig, name: Any) -> DictConfig:
    changed = config.copy()
    with open_dict(changed):
        changed.stages = {}
    for path, value in _iterate_changes(_list_changes(config)[name]):
        if isinstance(value, str) and "${" not in value and (CONF / path).is_dir():
            raise InputError(
                f"stages.{name}.{path}={value}: a stage takes the values of a part; in an experiment's defaults, "
                f"/{path}@stages.{name}.{path}: {value} chooses another"
            )
        OmegaConf.update(changed, path, value, merge=False)
    return changed


def _iterate_changes(content: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of each change, interpolations unresolved."""
    if isinstance(content, dict) and "_target_" not in content and (content or not path):
        for key, value in content.items():
            yield from _iterate_changes(value, f"{path}.{key}" if path else str(key))
    else:
        yield path, content


def make_evaluation_config(config: DictConfig, *, lacks_weights: bool = False) -> DictConfig:
    """Return the configuration of a stage as a test of its checkpoint needs it.

    The parts that only training uses are not in it, and the model begins without pretrained weights, unless the
    checkpoint lacks them.
    """
    parts = resolve_parts(config, TRAINED)
    parts["trainer"] |= {
        "max_epochs": None,
        "max_steps": 1,
        "check_val_every_n_epoch": None,
        "val_check_interval": None,
        "callbacks": None,  # the user's own, which are of a training
    }
    backbone = parts["model"].get("backbone")
    if isinstance(backbone, dict) and "weights" in backbone and not lacks_weights:
        backbone["weights"] = None
    return OmegaConf.create(parts)


def resolve_parts(config: DictConfig, unused: Collection[str] = ()) -> dict[str, Any]:
    """Return the parts of a configuration as plain values, their interpolations resolved.

    Args:
        config: configuration of a run or a stage.
        unused: top-level keys to skip; an interpolation in them needn't have a value.
    """
    parts: dict[str, Any] = {}
    for key in config:
        if key not in unused:
            value = "???" if OmegaConf.is_missing(config, key) else config[key]
            is_plain = not OmegaConf.is_config(value)
            parts[str(key)] = value if is_plain else OmegaConf.to_container(value, resolve=True)
    return parts


QUICK_STEPS = 20
"""The largest number of optimizer steps of each stage."""

QUICK_CLASSES, QUICK_IMAGES = 64, 8
"""Classes of each split, and images of each class, that are kept of the data set."""

QUICK_CLASSES_PER_BATCH = 48
"""The largest number of classes in a batch: a validation fold takes some of `QUICK_CLASSES`."""


def shorten(config: DictConfig, typed: Collection[str] = ()) -> None:
    """Make the training of a stage short, in place: `QUICK_STEPS` optimizer steps or fewer, and two validations.

    Steps and classes of a batch whose keys were typed keep their numbers.
    """
    trainer, scheduler = config.trainer, config.scheduler
    validates = trainer.val_check_interval is not None or trainer.check_val_every_n_epoch is not None
    with open_dict(config):
        is_given = isinstance(trainer.max_steps, int) and trainer.max_steps > 0
        most = trainer.max_steps if "trainer.max_steps" in typed else QUICK_STEPS
        steps = min(trainer.max_steps, most) if is_given else QUICK_STEPS
        trainer.max_steps, trainer.max_epochs = steps, None
        trainer.val_check_interval = max(steps // 2, 1) if validates else None
        trainer.check_val_every_n_epoch = None
        scheduler.warmup_steps = 1 if scheduler.warmup_steps or scheduler.get("warmup_epochs") else 0
        scheduler.warmup_epochs = None
        config.training.bank_every_n_steps = None
        classes = OmegaConf.select(config, "sampler.classes_per_batch")
        if isinstance(classes, int) and "sampler.classes_per_batch" not in typed:
            config.sampler.classes_per_batch = min(classes, QUICK_CLASSES_PER_BATCH)
