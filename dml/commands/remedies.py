"""What to type instead: the key that may be meant, a path in quotes, a value for a key that has none."""

import shlex
from collections.abc import Collection
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from dml.run.config_folders import quote
from dml.runtime.configuration import flat
from dml.runtime.errors import suggest
from dml.runtime.run_folder import newest_runs

OTHER_NAMES = {
    "batch_size": ["sampler.classes_per_batch", "sampler.images_per_class"],
    "epochs": ["trainer.max_epochs"],
    "gpus": ["trainer.devices"],
    "learning_rate": ["optimizer.lr"],
    "steps": ["trainer.max_steps"],
}
"""Names of keys elsewhere, and the keys here."""

EXAMPLES = {
    "model.backbone.name": ("resnet18", "convnext_tiny", "vit_small_patch16_224"),
    "checkpoint": ("outputs/.../checkpoints/best.ckpt",),
}
"""Values for keys that the user has to give."""


def suggest_keys(key: str, beside: Collection[str], root: Any) -> str:
    """Return the end of a line about an unknown key: the keys of that name anywhere, or else the nearest ones.

    ``beside`` are the keys, and perhaps the groups, at the place where it was looked for.
    """
    plain: Any = OmegaConf.to_container(root, resolve=False)
    paths = [path for path in flat({name: value for name, value in plain.items() if name != "hydra"}) if "." in path]
    known = [path for path in OTHER_NAMES.get(key, []) if path in paths]
    same = [path for path in paths if path.rpartition(".")[2] == key]
    if meant := known or sorted(same, key=lambda path: path.count("."))[:3]:
        return f"; is it {(' and ' if known else ' or ').join(meant)}?"
    if get_close_matches(key, beside, n=1, cutoff=0.6):
        return suggest(key, beside)
    paths_by_name = {path.rpartition(".")[2]: path for path in reversed(paths)}
    if similar := get_close_matches(key, paths_by_name, n=3, cutoff=0.8):
        return f"; is it {' or '.join(paths_by_name[name] for name in similar)}?"
    return suggest(key, beside)


def explain_grammar(override: str, message: str) -> str:
    """Return the line about an argument that Hydra can't read; a value that may be a text is shown in quotes."""
    key, equals, value = override.partition("=")
    if Path(override).exists():
        return f"{override}: no KEY=VALUE; {_explain_path(Path(override))}"
    if not equals:
        return (
            f"{override}: no KEY=VALUE; there are no spaces around the =, and a value with spaces takes quotes, such "
            "as 'dataset.root=my photos'"
        )
    if value[:1] in "[{'\"":
        return f"{override}: {' '.join(message.split())}"
    if key[:1] in "'\"":
        return f"{override}: quotes around the whole argument; without them it is {override.strip(key[0])}"
    text = quote(value).replace("'", '"') if "'" not in value and '"' not in value else quote(value)
    return f"{override}: Hydra can't read this value; if it is a text or a path, quote it twice: '{key}={text}'"


def _explain_path(path: Path) -> str:
    """Return what takes a path that was given without a key: a run, a folder of runs, a checkpoint, or images."""
    run = next(newest_runs(path), None) if path.is_dir() else None
    if run is None and path.suffix != ".ckpt":
        from dml.data.readers.folder import name_reader  # late: it imports NumPy

        root = shlex.quote(f"dataset.root={path}")
        return f"dataset=folder {root} reads it" if path.is_dir() else f"{name_reader(path)}: {root}"
    tested, other = (path, f"training.init={path}") if run is None else (run.best_checkpoint, f"resume={run.path}")
    action = "begins a new run with its weights" if run is None else "goes on with the run"
    return f"{shlex.quote(f'checkpoint={tested}')} tests it, {shlex.quote(other)} {action}"


def explain_missing(key: str, message: str) -> str:
    """Return the line about a key that has no value yet, with examples of values if there are some."""
    examples = EXAMPLES.get(key)
    if examples is None:
        return " ".join(message.split())
    return f"{key}: give it a value, such as {' or '.join(f'{key}={example}' for example in examples)}"
