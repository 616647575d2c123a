"""Every key of a configuration, declared once: its type, its choices and bounds, and what else depends on it.

Defaults and explanations are in ``conf/``. The parameters of an object with a ``_target_`` are declared by its
signature; `PART_KEYS` has what depends on some of them.
"""

from collections.abc import Iterator
from dataclasses import MISSING as NO_DEFAULT
from dataclasses import Field, dataclass, field, fields, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args

from annotated_types import Ge, Gt, Interval
from omegaconf import MISSING, DictConfig, OmegaConf

if TYPE_CHECKING:
    from dml.data.image_files.limits import ImageLimits

BEGINNING, STEPS, CHOICE, NOTHING = "beginning", "steps", "choice", "nothing"
"""What fixes a value in a resumed run: its first step, each step, the choice of a checkpoint, or nothing."""


@dataclass(frozen=True)
class Key:
    """What depends on a key, beside its type.

    Args:
        fixed: the part of a run that fixes the value of the key and of those below it: `BEGINNING`, `STEPS`, `CHOICE`
            or `NOTHING`; None as for the key above.
        is_path: whether the key holds a path.
        is_trained: whether only a training uses it, and no test of a checkpoint.
        is_shared: whether all stages of a run share it.
        is_saved: whether a saved model keeps it.
        is_prepared: whether ``dml prepare`` needs it.
        is_built: whether a run builds one object of it, so that it needs a ``_target_``.
        is_finite: whether the numbers below it have to be finite; elsewhere an infinite one may stand for no limit.
        is_ignored: whether another value is another run, or another machine, of the same training.
        is_process: whether the key sets how many processes train, and how they train together.
        keeps_environment: whether a run stores the variables of the environment that it names, and not their values.
        decides_raw: whether the metrics of the features before the training depend on it.
        needs: key right below it without which, or with null, the part counts as missing; None for no such key.
        unset: value with which a run counts as one of a version that lacked the key; `MISSING` if there is none.
    """

    fixed: str | None = None
    is_path: bool = False
    is_trained: bool = False
    is_shared: bool = False
    is_saved: bool = False
    is_prepared: bool = False
    is_built: bool = False
    is_finite: bool = False
    is_ignored: bool = False
    is_process: bool = False
    keeps_environment: bool = False
    decides_raw: bool = False
    needs: str | None = None
    unset: Any = MISSING


def key(**facts: Any) -> Any:
    """Declare a key that has to be in a configuration, whose default is in ``conf/``; see `Key` for the facts."""
    return field(metadata={"key": Key(**facts)}, kw_only=True)


def added_key(default: Any, **facts: Any) -> Any:
    """Declare a key that a run of an older version, or a file of ``conf/dataset`` of the user's own, may lack."""
    return field(default=default, metadata={"key": Key(**facts)}, kw_only=True)


Count = Annotated[int, Ge(1)]
Natural = Annotated[int, Ge(0)]
WhitenedHeads = Literal["auto", "half_whitened_components", "principal_components", "whitened_components"]
Seed = Annotated[int, Interval(ge=0, lt=2**32)]


@dataclass(frozen=True)
class DataSettings:
    """``data``: how images are read."""

    num_workers: Natural | Literal["auto"] = key()
    on_corrupt: Literal["raise", "skip"] = key()
    check_images: Natural = key()
    max_image_bytes: Count = key()
    max_pixels: Count = key()
    max_list_bytes: Count = key()
    background: str = key()
    eval_batch_size: Count = key()
    pin_memory: bool | Literal["auto"] = key()
    cache: str | None = key(is_path=True)

    @property
    def limits(self) -> "ImageLimits":
        """How images are read: ``data.max_pixels``, ``data.background`` and so on."""
        from dml.data.image_files.limits import ImageLimits  # late: --help needs no NumPy

        return ImageLimits.from_settings({name: value for name, value in vars(self).items() if value is not None})


@dataclass(frozen=True)
class DatasetSettings:
    """``dataset``: the images with their labels and splits."""

    name: str = key()
    reader: Any = key()
    root: str | None = key(is_path=True, is_ignored=True)
    folds: int | None = key()
    fold: int = key()
    disjoint: bool = key()
    queries_in_gallery: bool | None = added_key(None)
    verify: bool = key()
    counts: dict[Any, Any] | None = key()


@dataclass(frozen=True)
class TransformSettings:
    """``transform``: what is done to an image before the network sees it."""

    size: int = key(fixed=STEPS)
    resize: int | None = added_key(None)
    train: dict[Any, Any] = key(fixed=STEPS)
    test: dict[Any, Any] = key()


@dataclass(frozen=True)
class DistillSettings:
    """``distill``: a model whose embeddings the training learns from."""

    teacher: str | None = key(is_path=True)
    weight: Annotated[float, Ge(0)] = key()
    labels: bool = key()
    loss: Any = key()


@dataclass(frozen=True)
class SchedulerSettings:
    """``scheduler``: how the learning rates change."""

    warmup_steps: Natural = key()
    warmup_epochs: Annotated[float, Ge(0)] | None = key()
    interval: Literal["step", "epoch"] = key()
    schedule: Any = key()
    loss: dict[Any, Any] | None = key()


@dataclass(frozen=True)
class TrainingSettings:
    """``training``: how the network is trained."""

    frozen: bool = key(unset=False)
    init: str | None = key(fixed=BEGINNING, is_path=True)
    proxies: Literal["auto", "class_means"] | None = key(fixed=BEGINNING)
    bank_every_n_steps: Count | None = key(fixed=STEPS)
    gradient_cache: Count | None = key(fixed=STEPS)
    shard_loss: bool = key(unset=True)
    compile: bool | dict[Any, Any] | None = key()
    matmul_precision: Literal["highest", "high", "medium"] | None = key(fixed=STEPS)
    ema: Annotated[float, Interval(gt=0, lt=1)] | None = key(fixed=STEPS)


@dataclass(frozen=True)
class HeadSettings:
    """``heads``: how the heads begin, and which of them are concatenated."""

    initial: WhitenedHeads | None = key(fixed=BEGINNING)
    choose: bool = key(fixed=CHOICE)


@dataclass(frozen=True)
class CheckpointSettings:
    """``checkpoints``: when checkpoints are written, and which one is the best."""

    every_n_steps: Count = key()
    every_n_seconds: Annotated[float, Gt(0)] | None = key()
    monitor: str = key(fixed=CHOICE)
    mode: Literal["max", "min"] = key(fixed=CHOICE)
    tie_breaker: str | None = key(fixed=CHOICE)
    patience: Count | None = key()
    beginning: bool = key()
    interpolation: list[Any] | None = key(fixed=CHOICE, unset=None)


@dataclass(frozen=True)
class ThresholdSettings:
    """``evaluation.threshold``: the similarity from which on two images are of one class."""

    wrong_share: Annotated[float, Interval(gt=0, lt=1)] = key()
    fmr: Annotated[float, Interval(gt=0, lt=1)] | None = key()


@dataclass(frozen=True)
class PictureSettings:
    """``evaluation.sheet``: a picture of some queries."""

    queries: Count = key()
    neighbors: Count = key()
    seed: Natural = key()


@dataclass(frozen=True)
class ReportSettings:
    """``evaluation.report``: the page about a test."""

    neighbors: Count = key()
    map: bool = key()
    seed: Natural = added_key(0)  # the map alone is drawn with it


@dataclass(frozen=True)
class EvaluationSettings:
    """``evaluation``: what a test computes."""

    selection: Literal["val", "last", "test"] = key()
    split: Literal["val"] | None = key()
    recall_at: list[Any] = key()
    metrics: list[Any] = key()
    validation_metrics: list[Any] | Literal["auto"] = key()
    crops: Literal[1, 2, 5, 10] = key()
    alpha: float = key()
    count_query: bool = key()
    level_weights: list[Any] | None = key()
    exclude: Literal["nearest"] | None = key()
    clustering: bool = key()
    fixed_neighbors: Count | None = key()
    other_labels: dict[Any, Any] = key()
    heads: bool = key()
    head_sets: list[Any] | None = key()
    raw: bool = key()
    threshold: ThresholdSettings | None = key()
    reranking: Literal["alpha_qe", "k_reciprocal"] | None = key()
    sheet: PictureSettings | None = key()
    report: ReportSettings | None = key()


@dataclass(frozen=True)
class LoggerSettings:
    """``logger``: what logs a training beside metrics.csv."""

    loggers: dict[Any, Any] = key()


@dataclass(frozen=True)
class Settings:
    """The configuration of ``dml train``."""

    seed: Seed = key(fixed=BEGINNING, is_ignored=True, is_saved=True, decides_raw=True)
    quick: bool = key(is_shared=True)
    resume: str | None = key(is_path=True, is_shared=True)
    trust: bool = key()
    accept_changed_data: bool = key(is_shared=True)
    debug: bool = key()
    stages: dict[Any, Any] = key(is_shared=True)

    data: DataSettings = key(is_prepared=True, is_ignored=True, is_saved=True, decides_raw=True)
    dataset: DatasetSettings = key(is_prepared=True, is_shared=True, is_saved=True, decides_raw=True)
    transform: TransformSettings = key(is_saved=True, is_finite=True, decides_raw=True)
    sampler: Any = key(fixed=STEPS, is_trained=True, is_saved=True, is_built=True, is_finite=True)
    model: Any = key(fixed=STEPS, is_saved=True, is_built=True, is_finite=True, decides_raw=True)
    adapter: Any = key(fixed=STEPS, is_saved=True, is_finite=True, unset=None)
    recurrent: Any = key(fixed=STEPS, is_finite=True, decides_raw=True)
    loss: Any = key(fixed=STEPS, is_trained=True, is_saved=True, is_built=True, is_finite=True)
    distill: DistillSettings = key(fixed=STEPS, is_trained=True, is_finite=True, needs="teacher")
    optimizer: Any = key(fixed=STEPS, is_trained=True, is_saved=True, is_built=True, is_finite=True)
    scheduler: SchedulerSettings = key(fixed=STEPS, is_trained=True, is_saved=True, is_finite=True)
    training: TrainingSettings = key()
    heads: HeadSettings = key()
    checkpoints: CheckpointSettings = key(is_trained=True)
    evaluation: EvaluationSettings = key(is_saved=True, decides_raw=True)
    trainer: Any = key(is_saved=True, is_built=True)
    logger: LoggerSettings = key(is_trained=True, is_ignored=True, keeps_environment=True)
    sweep: dict[Any, Any] = key(is_trained=True, is_ignored=True)


@dataclass(frozen=True)
class EvaluateSettings(Settings):
    """The configuration of ``dml evaluate``."""

    checkpoint: str = key(is_path=True)
    split: Literal["test", "val", "train"] | None = key()


@dataclass(frozen=True)
class ContactSheetSettings:
    """``sheet``: the contact sheets of ``dml prepare`` and ``dml inspect``."""

    classes: Count = key()
    pictures: Count = key()
    seed: Natural = key()


@dataclass(frozen=True)
class FindingsSheetSettings(ContactSheetSettings):
    """``sheet`` of ``dml inspect``."""

    findings: Natural = key()


@dataclass(frozen=True)
class PrepareSettings(Settings):
    """The configuration of ``dml prepare``."""

    resize: int | None = key()
    mode: Literal["warp", "shorter", "longer"] = key()
    verify: Literal["stamp", "content"] = key()
    processes: Count | None = key(is_prepared=True)
    sheet: ContactSheetSettings | None = key()


@dataclass(frozen=True)
class InspectSettings(Settings):
    """The configuration of ``dml inspect``."""

    backbones: list[str] | None = key()
    max_images: Count | None = key()
    components: Count | None = key()
    processes: Count | None = key(is_prepared=True)
    sheet: FindingsSheetSettings | None = key()


SETTINGS: dict[str, type[Settings]] = {
    "train": Settings,
    "evaluate": EvaluateSettings,
    "prepare": PrepareSettings,
    "inspect": InspectSettings,
}
"""The settings of each command."""

PART_KEYS = {
    "model.backbone.weights": Key(fixed=NOTHING, is_path=True),  # a file of weights may have been moved
    "model.concatenation": Key(fixed=NOTHING),
    **{f"trainer.gradient_clip_{name}": Key(fixed=STEPS) for name in ("val", "algorithm")},
    "trainer.precision": Key(fixed=STEPS),
    "trainer.callbacks": Key(fixed=STEPS),
    "trainer.accelerator": Key(is_ignored=True),
    "trainer.devices": Key(is_ignored=True, is_process=True, keeps_environment=True),
    "trainer.num_nodes": Key(is_process=True, keeps_environment=True),
    "trainer.strategy": Key(is_ignored=True, is_process=True),
    "trainer.sync_batchnorm": Key(is_process=True),
    "hydra": Key(keeps_environment=True),
    "hydra.run.dir": Key(is_path=True),
    "hydra.sweep.dir": Key(is_path=True),
}
"""What depends on keys that are parameters of an object with a ``_target_``, or Hydra's."""


SettingsOf = TypeVar("SettingsOf")


def read_settings(config: DictConfig, kind: type[SettingsOf]) -> SettingsOf:
    """Return the values of a composed configuration by their keys, interpolations resolved.

    What holds a ``_target_``, and mappings and lists whose keys are the user's, stay nodes of the configuration, which
    `dml.run.building.build` takes. A key that the configuration lacks is None, or has the default of its declaration:
    a test lacks the parts that only a training uses, and a saved model those that older versions had not.

    Args:
        config: configuration of a command, of a stage of a run, or of a part of it; later changes to it don't show.
        kind: settings of the command, or of the part that the node is.
    """
    values = {}
    for name, declared in list_declared(kind).items():
        value = config.get(name, None if declared.default is NO_DEFAULT else declared.default)
        group = find_group(declared.type)
        values[declared.name] = read_settings(value, group) if group and OmegaConf.is_dict(value) else value
    return kind(**values)


def list_declared(kind: Any) -> dict[str, Field[Any]]:
    """Return the fields of a group by their keys."""
    return {declared.name: declared for declared in fields(kind)}


def _list_fields(kind: Any, prefix: str = "") -> Iterator[tuple[str, Key]]:
    for key_name, declared in list_declared(kind).items():
        name = f"{prefix}{key_name}"
        yield name, declared.metadata["key"]
        if (group := find_group(declared.type)) is not None:
            yield from _list_fields(group, f"{name}.")


def find_group(annotation: Any) -> Any:
    """Return the dataclass of a key's annotation, such as that of ``SheetSettings | None``; None without one."""
    kinds = (annotation, *get_args(annotation))
    return next((kind for kind in kinds if isinstance(kind, type) and is_dataclass(kind)), None)


@cache
def all_keys() -> dict[str, Key]:
    """Return what depends on each key of all commands, by its dotted name."""
    return {name: facts for kind in SETTINGS.values() for name, facts in _list_fields(kind)} | PART_KEYS


@cache
def list_keys(fact: str) -> tuple[str, ...]:
    """Return the keys of which a fact of `Key` is true, such as those that hold paths for "is_path"."""
    return tuple(name for name, facts in all_keys().items() if getattr(facts, fact))


def what_fixes(path: str) -> str | None:
    """Return what fixes a value in a resumed run; the nearest key at or above it that has a fact `fixed` decides.

    >>> what_fixes("loss.margin"), what_fixes("model.backbone.weights"), what_fixes("data.cache")
    ('steps', 'nothing', None)
    """
    names = path.split(".")
    above = (all_keys().get(".".join(names[:count])) for count in range(len(names), 0, -1))
    return next((facts.fixed for facts in above if facts is not None and facts.fixed), None)


@cache
def list_fixed(fixed_by: str) -> tuple[str, ...]:
    """Return the keys that something fixes in a resumed run, such as `CHOICE`, without those below them."""
    return tuple(name for name, facts in all_keys().items() if facts.fixed == fixed_by)
