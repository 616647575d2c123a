"""Imports: public names when they are first used, large libraries faster and silent, modules of the working folder."""

import ast
import gc
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from dml.runtime.errors import suggest


def read_stub(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a package (PEP 562) by the imports in its ``.pyi`` file.

    Type checkers read the same file, so that there is one list of names. A program that uses one loss imports that loss
    alone.
    """
    statements = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8")).body
    imports = [statement for statement in statements if isinstance(statement, ast.ImportFrom)]
    modules = {alias.name: f"{package}.{statement.module}" for statement in imports for alias in statement.names}

    def import_name(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"{package}.{name}: no such name{suggest(name, modules)}")
        return getattr(import_module(modules[name]), name)

    return import_name, lambda: sorted(modules), sorted(modules)


MANY = 200
"""The number of new modules that pays for `gc.freeze`; after fewer, garbage of an earlier run would stay for good."""


@contextmanager
def quick_imports() -> Iterator[None]:
    """Collect no garbage in the ``with`` body, which imports large libraries; commands call it, ``import dml`` doesn't.

    An import makes a million objects that stay. Collections in the meantime take a tenth of its time, and later ones
    pass over these objects (`gc.freeze`).
    """
    if not gc.isenabled():
        yield
        return
    before = len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        if len(sys.modules) - before >= MANY:
            gc.freeze()
        gc.enable()


@contextmanager
def hidden(*names: str) -> Iterator[None]:
    """Let packages that weren't imported before seem not to be installed in the ``with`` body.

    It is for a library that imports them for nothing of dml's, and does without them.
    """
    hidden_names = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden_names))  # type: ignore[arg-type]  # None raises ModuleNotFoundError
    try:
        yield
    finally:
        for name in hidden_names:
            if sys.modules.get(name, name) is None:
                del sys.modules[name]


EXPECTED = (
    r".*does not have many workers.*",  # two cores are enough for small images; data.num_workers says how many
    r".*module\(s\) in eval mode at the start of training.*",  # frozen batch normalization
    r"Checkpoint directory .* exists and is not empty.*",  # a resumed run
    r".*LeafSpec.*is deprecated.*",  # Lightning's own
    r"The dirpath has changed from .*",  # a run folder that was moved
    r"torch.distributed.nn.functional.all_gather is deprecated.*",  # Lightning's own
    r"It is recommended to use .*sync_dist=True.*",  # every process has the metrics of all
    r"The AccumulateGrad node's stream does not match.*",  # Lightning's own, with trainer=ddp on GPUs
    r"IProgress not found.*",  # tqdm's, in a notebook without ipywidgets: progress is printed in lines
    r"GPU available but not used.*",  # trainer.accelerator=cpu
    r"TensorFloat32 tensor cores .* available but not enabled.*",  # matmul_precision=high enables them
)


def quiet() -> None:
    """Silence the warnings of libraries about choices that are deliberate here."""
    for name in ("pytorch_lightning", "lightning_fabric", "faiss"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for message in EXPECTED:
        warnings.filterwarnings("ignore", message=message)


def import_from_working_folder() -> None:
    """Let ``_target_`` name modules in the working folder, behind all others, however the command was started.

    ``python -m dml`` alone finds them by itself. Like there, ``python -P`` and PYTHONSAFEPATH=1 turn it off.
    """
    folder = str(Path.cwd())
    if not sys.flags.safe_path and folder not in sys.path:
        sys.path.append(folder)
