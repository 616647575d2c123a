"""Rows about damaged files: checkpoints, what a preparation leaves, and the commands that read it."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch

from faults.commands import run
from faults.damage import KINDS, Damage, flip_bit, flip_thousandth, zero_block
from faults.fixtures import Fixtures, cache_folder, prepare_arguments, train_arguments
from faults.rows import FailedError, Fault, Try
from faults.rules import check_unchanged_or_told, digest_values, find_run_difference, read_metrics

RULE = "the same results bit for bit, or one line and exit code 2"
ReadCommand = Callable[[Try, Path, Callable[[], None]], str]
"""A command that reads a damaged file: (try, copy of the fixture folder, function that damages it) -> how it held."""


@dataclass(frozen=True)
class Target:
    """A kind of file to damage.

    Args:
        name: name of the kind of file in the table.
        fixture: name of the fixture folder that holds the file.
        file: path of the file below the fixture folder.
        reads: commands that read the file, which the tries take in turns.
    """

    name: str
    fixture: str
    file: str
    reads: Sequence[ReadCommand]


def evaluate(attempt: Try, copy: Path, damage: Callable[[], None]) -> str:
    """Test the best checkpoint again, and compare the loaded weights and the metrics."""
    damage()
    loaded, folder = attempt.folder / "loaded", attempt.folder / "evaluation"
    path = copy / "checkpoints" / "best.ckpt"
    arguments = [f"checkpoint={path}", f"hydra.run.dir={folder}"]
    ended = run("evaluate.py", *arguments, folder=attempt.folder, before=partial(_record_weights, loaded))
    intact_run = Fixtures(attempt.fixtures).run

    def differs() -> str:
        if loaded.read_text() != _digest_model_weights(intact_run / "checkpoints" / "best.ckpt"):
            return "other weights"
        values, expected = read_metrics(folder), read_metrics(intact_run)
        return "other metrics" if any(values[name] != expected[name] for name in values if "/" in name) else ""

    how = check_unchanged_or_told(ended, differs, folder)
    if how == "told" and "last.ckpt" not in ended.err:
        raise FailedError("the line doesn't name last.ckpt, which is intact", ended)
    return how


def resume(attempt: Try, copy: Path, damage: Callable[[], None]) -> str:
    """Resume an interrupted run."""
    damage()
    ended = run("train.py", f"resume={copy}", folder=attempt.folder)
    return check_unchanged_or_told(ended, lambda: find_run_difference(Fixtures(attempt.fixtures).resumed, copy), copy)


def train(attempt: Try, copy: Path, damage: Callable[[], None]) -> str:
    """Train on the cache of a prepared data set."""
    damage()
    folder = attempt.folder / "trained"
    ended = run("train.py", *train_arguments(copy, folder), folder=attempt.folder)
    return check_unchanged_or_told(
        ended, lambda: find_run_difference(Fixtures(attempt.fixtures).cached_run, folder), folder
    )


def prepare(attempt: Try, copy: Path, damage: Callable[[], None]) -> str:
    """Prepare the data set again, which has to restore the table and the cache."""
    damage()
    ended = run("scripts/prepare.py", *prepare_arguments(copy), folder=attempt.folder)
    expected = cache_folder(Fixtures(attempt.fixtures).prepared)
    return check_unchanged_or_told(ended, lambda: find_cache_difference(expected, cache_folder(copy)), copy)


def find_cache_difference(expected: Path, other: Path) -> str:
    """Return what differs between two folders of prepared data; an empty string if nothing does."""
    for name in ("table.parquet", "warp-32.parquet"):
        tables = (pq.read_table(folder / name).drop_columns(["inode", "ctime_ns"]) for folder in (expected, other))
        if not next(tables).equals(next(tables), check_metadata=True):
            return f"another {name}"
    pixels = "warp-32.pixels"
    return "" if (expected / pixels).read_bytes() == (other / pixels).read_bytes() else f"another {pixels}"


TARGETS = {
    target.name: target
    for target in (
        Target("best.ckpt", "run", "checkpoints/best.ckpt", [evaluate]),
        Target("last.ckpt", "interrupted", "checkpoints/last.ckpt", [resume]),
        Target("the cache's pixels", "prepared", ".dml/folder/warp-32.pixels", [train, prepare]),
        Target("the cache's index", "prepared", ".dml/folder/warp-32.parquet", [train, prepare]),
        Target("table.parquet", "prepared", ".dml/folder/table.parquet", [prepare]),
        Target("verified.jsonl", "half_prepared", ".dml/folder/verified.jsonl", [prepare]),
    )
}
"""The kinds of files, by name."""


def damage_and_read(attempt: Try, target: Target, damage: Damage, turn: int) -> str:
    """Copy a fixture, damage the file, run a command that reads it, and return how the try held."""
    copy = attempt.folder / target.fixture
    shutil.copytree(attempt.fixtures / target.fixture, copy)
    read = target.reads[turn % len(target.reads)]
    try:
        return read(attempt, copy, lambda: damage(copy / target.file, attempt.rng))
    except FailedError as error:
        kind = damage.__name__.strip("_").replace("_", " ")
        raise FailedError(f"{target.name}, {read.__name__}, {kind}: {error.why}", error.ended) from error


def _flip_fault(name: str, fault: str, now: str, *targets: str) -> Fault:
    chosen = [TARGETS[target] for target in targets]

    def make_try(attempt: Try) -> str:
        return damage_and_read(attempt, chosen[attempt.number % len(chosen)], flip_bit, attempt.number // len(chosen))

    return Fault(name, f"one bit flipped in {fault}", 200, RULE, now, make_try)


DAMAGED = [name for name in TARGETS if name not in ("best.ckpt", "last.ckpt", "the cache's pixels")]


def _damage_prepared_file(attempt: Try) -> str:
    target = TARGETS[DAMAGED[attempt.number % len(DAMAGED)]]
    turn = attempt.number // len(DAMAGED)
    return damage_and_read(attempt, target, [*KINDS.values()][turn % len(KINDS)], turn // len(KINDS))


def _damage_checkpoint(attempt: Try) -> str:
    kinds: list[Damage] = [flip_thousandth, *KINDS.values()]
    target = TARGETS[("best.ckpt", "last.ckpt")[attempt.number % 2]]
    return damage_and_read(attempt, target, kinds[attempt.number // 2 % len(kinds)], 0)


def _resume_moved(attempt: Try) -> str:
    """Resume an interrupted run in another folder, as after a move or a backup."""
    moved = attempt.folder / "moved"
    shutil.copytree(Fixtures(attempt.fixtures).interrupted, moved)
    ended = run("train.py", f"resume={moved}", folder=attempt.folder)
    return check_unchanged_or_told(ended, lambda: find_run_difference(Fixtures(attempt.fixtures).run, moved), moved)


def _zero_pixels(path: Path, rng: Any) -> None:  # noqa: ARG001
    path.write_bytes(bytes(path.stat().st_size))


def _damage_pixels(attempt: Try) -> str:
    kinds: list[Damage] = [_zero_pixels, zero_block, KINDS["noise over a part"], KINDS["cut short"], KINDS["empty"]]
    return damage_and_read(
        attempt, TARGETS["the cache's pixels"], kinds[attempt.number // 2 % len(kinds)], attempt.number
    )


CHECKPOINT = "A checksum tells; the error line names an intact checkpoint if there is one."
TABLE = "A training compares the checksum of each image; prepare writes damaged files again."
JOURNAL = "prepare reads images without a sound entry again."
FAULTS = [
    _flip_fault("flips-best", "best.ckpt", CHECKPOINT, "best.ckpt"),
    Fault(
        "checkpoints",
        "best.ckpt or last.ckpt cut short, emptied, overwritten, or a tenth of a percent of it flipped",
        36,
        RULE,
        CHECKPOINT,
        _damage_checkpoint,
    ),
    _flip_fault("flips-last", "last.ckpt", CHECKPOINT, "last.ckpt"),
    Fault(
        "moved",
        "the folder of an interrupted run moved, and resumed in its new place",
        2,
        "the same results bit for bit",
        "The run looks for its best checkpoint in the folder that it is in now.",
        _resume_moved,
    ),
    Fault(
        "damaged",
        "the cache's index, table.parquet or verified.jsonl damaged or empty",
        len(DAMAGED) * len(KINDS) * 3,
        f"{RULE}; prepare may write the file again",
        TABLE,
        _damage_prepared_file,
    ),
    Fault(
        "pixels",
        "the cache's pixels zeroed, overwritten or cut short",
        20,
        f"{RULE}; prepare has to write them again",
        TABLE,
        _damage_pixels,
    ),
    _flip_fault("flips-pixels", "the cache's pixels", TABLE, "the cache's pixels"),
    _flip_fault("flips-index", "the cache's index", TABLE, "the cache's index"),
    _flip_fault("flips-table", "table.parquet", JOURNAL, "table.parquet"),
    _flip_fault("flips-journal", "verified.jsonl", JOURNAL, "verified.jsonl"),
]


def _record_weights(path: Path) -> None:
    """Make this process write a digest of the weights that it loads into a model."""
    load = torch.nn.Module.load_state_dict

    def recorded(module: torch.nn.Module, state: Any, *arguments: Any, **keywords: Any) -> Any:
        path.write_text(digest_values(dict(sorted(state.items()))))
        return load(module, state, *arguments, **keywords)

    torch.nn.Module.load_state_dict = recorded  # type: ignore[method-assign, assignment]


def _digest_model_weights(checkpoint: Path) -> str:
    state = torch.load(checkpoint, map_location="cpu", weights_only=True)["state_dict"]
    weights = {key.removeprefix("model."): value for key, value in state.items() if key.startswith("model.")}
    return digest_values(dict(sorted(weights.items())))
