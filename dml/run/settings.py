"""Every key of a configuration, declared once: its type, its choices and bounds.

Defaults and explanations are in ``conf/``. The parameters of an object with a ``_target_`` are declared by its
signature.
"""

from dataclasses import MISSING as NO_DEFAULT
from dataclasses import Field, dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args

from omegaconf import DictConfig, OmegaConf
from pydantic import Field as Bounds

if TYPE_CHECKING:
    from dml.data.images import ImageLimits

TRAINED = ("sampler", "loss", "distill", "optimizer", "scheduler", "checkpoints", "logger", "sweep")
"""The parts that only a training uses, and no test of a checkpoint."""

Count = Annotated[int, Bounds(ge=1)]
Natural = Annotated[int, Bounds(ge=0)]
WhitenedHeads = Literal["auto", "half_whitened_components", "principal_components", "whitened_components"]
Share = Annotated[float, Bounds(ge=0, le=1)]
Seed = Annotated[int, Bounds(ge=0, lt=2**32)]


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """``data``: how images are read."""

    num_workers: Natural | Literal["auto"]
    on_corrupt: Literal["raise", "skip"]
    check_images: Natural
    max_image_bytes: Count
    max_pixels: Count
    max_list_bytes: Count
    background: str
    eval_batch_size: Count
    pin_memory: bool | Literal["auto"]
    cache: str | None

    @property
    def limits(self) -> "ImageLimits":
        """How images are read: ``data.max_pixels``, ``data.background`` and so on."""
        from dml.data.images import ImageLimits  # late: --help needs no NumPy

        return ImageLimits.from_settings({name: value for name, value in vars(self).items() if value is not None})


@dataclass(frozen=True, kw_only=True)
class DatasetSettings:
    """``dataset``: the images with their labels and splits."""

    name: str
    reader: Any
    root: str | None
    folds: int | None
    fold: int
    disjoint: bool
    queries_in_gallery: bool | None = None
    verify: bool
    counts: dict[Any, Any] | None


@dataclass(frozen=True, kw_only=True)
class TransformSettings:
    """``transform``: what is done to an image before the network sees it."""

    size: int
    resize: int | None = None
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"
    train: dict[Any, Any]
    test: dict[Any, Any]


@dataclass(frozen=True, kw_only=True)
class DistillSettings:
    """``distill``: a model whose embeddings the training learns from."""

    teacher: str | None
    weight: Annotated[float, Bounds(ge=0)]
    labels: bool
    loss: Any


@dataclass(frozen=True, kw_only=True)
class LossScheduleSettings:
    """``scheduler.loss``: a number of the loss that changes with the steps."""

    attribute: str
    start: float
    end: float


@dataclass(frozen=True, kw_only=True)
class SchedulerSettings:
    """``scheduler``: how the learning rates change."""

    warmup_steps: Natural
    warmup_epochs: Annotated[float, Bounds(ge=0)] | None
    interval: Literal["step", "epoch"]
    schedule: Any
    loss: LossScheduleSettings | None


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """``training``: how the network is trained."""

    frozen: bool
    init: str | None
    proxies: Literal["auto", "class_means"] | None
    bank_every_n_steps: Count | None
    gradient_cache: Count | None
    shard_loss: bool
    compile: bool | dict[Any, Any] | None
    matmul_precision: Literal["highest", "high", "medium"] | None
    ema: Annotated[float, Bounds(gt=0, lt=1)] | None


@dataclass(frozen=True, kw_only=True)
class HeadSettings:
    """``heads``: how the heads begin, and which of them are concatenated."""

    initial: WhitenedHeads | None
    choose: bool


@dataclass(frozen=True, kw_only=True)
class CheckpointSettings:
    """``checkpoints``: when checkpoints are written, and which one is the best."""

    every_n_steps: Count
    every_n_seconds: Annotated[float, Bounds(gt=0)] | None
    monitor: str
    mode: Literal["max", "min"]
    tie_breaker: str | None
    patience: Count | None
    beginning: bool
    interpolation: list[Share] | None


@dataclass(frozen=True, kw_only=True)
class ThresholdSettings:
    """``evaluation.threshold``: the similarity from which on two images are of one class."""

    wrong_share: Annotated[float, Bounds(gt=0, lt=1)]
    fmr: Annotated[float, Bounds(gt=0, lt=1)] | None


@dataclass(frozen=True, kw_only=True)
class PictureSettings:
    """``evaluation.sheet``: a picture of some queries."""

    queries: Count
    neighbors: Count
    seed: Natural


@dataclass(frozen=True, kw_only=True)
class ReportSettings:
    """``evaluation.report``: the page about a test."""

    neighbors: Count
    map: bool
    seed: Natural = 0  # the map alone is drawn with it


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """``evaluation``: what a test computes."""

    selection: Literal["val", "last", "test"]
    split: Literal["val"] | None
    recall_at: list[Any]
    metrics: list[Any]
    validation_metrics: list[Any] | Literal["auto"]
    crops: Literal[1, 2, 5, 10]
    alpha: float
    count_query: bool
    level_weights: list[Any] | None
    exclude: Literal["nearest"] | None
    clustering: bool
    fixed_neighbors: Count | None
    other_labels: dict[Any, Any]
    heads: bool
    head_sets: list[Any] | None
    raw: bool
    threshold: ThresholdSettings | None
    reranking: Literal["alpha_qe", "k_reciprocal"] | None
    sheet: PictureSettings | None
    report: ReportSettings | None


@dataclass(frozen=True, kw_only=True)
class LoggerSettings:
    """``logger``: what logs a training beside metrics.csv."""

    loggers: dict[Any, Any]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The configuration of ``dml train``."""

    seed: Seed
    quick: bool
    resume: str | None
    trust: bool
    accept_changed_data: bool
    debug: bool
    stages: dict[Any, Any]

    data: DataSettings
    dataset: DatasetSettings
    transform: TransformSettings
    sampler: Any
    model: Any
    adapter: Any
    recurrent: Any
    loss: Any
    distill: DistillSettings
    optimizer: Any
    scheduler: SchedulerSettings
    training: TrainingSettings
    heads: HeadSettings
    checkpoints: CheckpointSettings
    evaluation: EvaluationSettings
    trainer: Any
    logger: LoggerSettings
    sweep: dict[Any, Any]


@dataclass(frozen=True, kw_only=True)
class EvaluateSettings(Settings):
    """The configuration of ``dml evaluate``."""

    checkpoint: str
    split: Literal["test", "val", "train"] | None


@dataclass(frozen=True, kw_only=True)
class ContactSheetSettings:
    """``sheet``: the contact sheets of ``dml prepare`` and ``dml inspect``."""

    classes: Count
    pictures: Count
    seed: Natural


@dataclass(frozen=True, kw_only=True)
class FindingsSheetSettings(ContactSheetSettings):
    """``sheet`` of ``dml inspect``."""

    findings: Natural


@dataclass(frozen=True, kw_only=True)
class PrepareSettings(Settings):
    """The configuration of ``dml prepare``."""

    resize: int | None
    mode: Literal["warp", "shorter", "longer"]
    verify: Literal["stamp", "content"]
    processes: Count | None
    sheet: ContactSheetSettings | None


@dataclass(frozen=True, kw_only=True)
class InspectSettings(Settings):
    """The configuration of ``dml inspect``."""

    backbones: list[str] | None
    max_images: Count | None
    components: Count | None
    processes: Count | None
    sheet: FindingsSheetSettings | None


SETTINGS: dict[str, type[Settings]] = {
    "train": Settings,
    "evaluate": EvaluateSettings,
    "prepare": PrepareSettings,
    "inspect": InspectSettings,
}
"""The settings of each command."""

SettingsOf = TypeVar("SettingsOf")


def read_settings(config: DictConfig, kind: type[SettingsOf]) -> SettingsOf:
    """Return the values of a composed configuration by their keys, interpolations resolved.

    What holds a ``_target_``, and mappings and lists whose keys are the user's, stay nodes of the configuration, which
    `dml.run.building.build` takes. A key that the configuration lacks is None, or has the default of its declaration:
    a test lacks the parts that only a training uses.

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


def find_group(annotation: Any) -> Any:
    """Return the dataclass of a key's annotation, such as that of ``SheetSettings | None``; None without one."""
    kinds = (annotation, *get_args(annotation))
    return next((kind for kind in kinds if isinstance(kind, type) and is_dataclass(kind)), None)
