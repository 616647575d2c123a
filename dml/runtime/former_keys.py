"""The keys and objects that have moved since the last version: former names are read, and written as they are now."""

import re
from collections.abc import Mapping
from typing import Any

MOVED = {
    "choose_heads": "heads.choose",
    "compile": "training.compile",
    "ema": "training.ema",
    "frozen": "training.frozen",
    "geometry": "evaluation.geometry",
    "gradient_cache": "training.gradient_cache",
    "init": "training.init",
    "initial_heads": "heads.initial",
    "matmul_precision": "training.matmul_precision",
    "proxies": "training.proxies",
    "shard_loss": "training.shard_loss",
    "stored.every_n_steps": "training.bank_every_n_steps",
}
"""The present key of each former one."""

MOVED_TARGETS = {
    "dml.commands.start.sweep_start.SweepStart": "dml.commands.sweep_start.SweepStart",
    "dml.training.callbacks.best_checkpoint.BestCheckpoint": "dml.training.callbacks.checkpoints.BestCheckpoint",
    "dml.training.callbacks.class_mean_proxies.make_class_mean_proxies": (
        "dml.training.callbacks.initial_values.make_class_mean_proxies"
    ),
    "dml.training.callbacks.embedding_bank_updates.EmbeddingBankUpdates": (
        "dml.training.callbacks.embedding_bank.EmbeddingBankUpdates"
    ),
    "dml.training.callbacks.final_validation.FinalValidation": "dml.training.callbacks.validations.FinalValidation",
    "dml.training.callbacks.first_validation.make_first_validation": (
        "dml.training.callbacks.validations.make_first_validation"
    ),
    "dml.training.callbacks.last_checkpoint.LastCheckpoint": "dml.training.callbacks.checkpoints.LastCheckpoint",
    "dml.training.callbacks.principal_heads.make_principal_heads": (
        "dml.training.callbacks.initial_values.make_principal_heads"
    ),
    "dml.training.callbacks.seeding.StepSeed": "dml.training.callbacks.process_state.StepSeed",
    "dml.training.loggers.wandb_logger.RunFolderWandbLogger": "dml.training.loggers.RunFolderWandbLogger",
    "dml.training.processes.slurm": "dml.training.hardware.slurm",
}
"""The present name of each object below `TARGET_PARTS` that a configuration named otherwise."""

TARGET_PARTS = ("callbacks", "logger", "trainer")

_FORMER = re.compile(rf"([+~]*(?:stages\.[^.=]+\.)?)({'|'.join(map(re.escape, MOVED))})(?=[.=]|$)")


def rename_override(override: str) -> str:
    """Return an override with the present key in the place of a former one.

    >>> rename_override("ema=0.9"), rename_override("+stages.first.init=a.ckpt"), rename_override("seed=1")
    ('training.ema=0.9', '+stages.first.training.init=a.ckpt', 'seed=1')
    """
    match = _FORMER.match(override)
    return override if match is None else f"{match[1]}{MOVED[match[2]]}{override[match.end() :]}"


def rename_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration of plain values, or the changes of a stage, with the present keys.

    >>> rename_keys({"ema": 0.9, "loss": {"margin": 1}, "stages": {"first": {"init": None}}})
    {'loss': {'margin': 1}, 'stages': {'first': {'training': {'init': None}}}, 'training': {'ema': 0.9}}
    """
    renamed = {key: dict(value) if isinstance(value, Mapping) else value for key, value in config.items()}
    for former, present in MOVED.items():
        place, _, name = former.rpartition(".")
        source = renamed.get(place) if place else renamed
        if not isinstance(source, dict) or name not in source:
            continue
        group, _, new_name = present.partition(".")
        renamed.setdefault(group, {})[new_name] = source.pop(name)
        if place and not source:
            del renamed[place]
    if isinstance(stages := renamed.get("stages"), dict):
        renamed["stages"] = {
            name: rename_keys(changes) if isinstance(changes, Mapping) else changes for name, changes in stages.items()
        }
    if isinstance(callbacks := renamed.get("callbacks"), dict):
        renamed["callbacks"] = {name: _rename_references(entry) for name, entry in callbacks.items()}
    return renamed | {part: _rename_targets(renamed[part]) for part in TARGET_PARTS if part in renamed}


def former_key(key: str) -> str:
    """Return the former spelling of a dotted key, by which finished runs are known.

    >>> former_key("training.compile.mode"), former_key("stages.first.training.init")
    ('compile.mode', 'stages.first.init')
    """
    for former, present in MOVED.items():
        if match := re.fullmatch(rf"(stages\.[^.]+\.)?{re.escape(present)}(\..+)?", key):
            return f"{match[1] or ''}{former}{match[2] or ''}"
    return key


def _rename_references(entry: Any) -> Any:
    """Return the arguments of a callback with the present keys in interpolations such as ``${ema}``."""
    if not isinstance(entry, Mapping):
        return entry
    present = {f"${{{former}}}": f"${{{key}}}" for former, key in MOVED.items()}
    return {name: present.get(value, value) if isinstance(value, str) else value for name, value in entry.items()}


def _rename_targets(value: Any) -> Any:
    """Return a part of a configuration with the present names of the objects that have moved."""
    if isinstance(value, Mapping):
        return {name: _rename_targets(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [*map(_rename_targets, value)]
    return MOVED_TARGETS.get(value, value) if isinstance(value, str) else value
