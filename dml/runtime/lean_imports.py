"""Imports of Lightning, timm and torchvision without libraries that they import although dml uses nothing of them.

torchmetrics, of which Lightning needs two classes, imports matplotlib, scipy, torchvision and transformers wherever
they are installed, and timm imports wandb. One function of torchvision may be compiled, and some of timm's may not:
both import torch's compiler, which a training needs, and a model in use doesn't. Together they take more than half of
the time in which a command starts.

Python's garbage collection takes a fifth of what remains: an import makes a million objects that stay.
"""

import gc
import importlib
import importlib.abc
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

UNUSED = {
    "torchmetrics": ("matplotlib", "scipy", "torchvision", "transformers"),
    "timm": ("wandb",),
}
"""The libraries that are hidden while a package is imported, which does without each that isn't installed."""

LARGE = ("lightning_fabric", "pytorch_lightning", "sklearn", "torch", "torchvision", *UNUSED)
"""The packages that are imported without garbage collection."""

COMPILED = "torchvision.ops.roi_align"
"""The module that asks torch's compiler whether it supports a device, when a function is called."""
NOT_COMPILED = "timm"
"""The package with functions that torch's compiler must leave out (``torch.compiler.disable``)."""
COMPILER = "torch._dynamo"


def import_lean() -> None:
    """Import large packages without garbage collection, and without the libraries of `UNUSED`, in this process.

    torchmetrics draws no plots, and lacks its metrics of texts and some of images, as if these libraries weren't
    installed. Everything else can still import them. Commands call this; ``import dml`` changes nothing. A package, or
    a library, that was imported before stays as it is.
    """
    if not any(isinstance(finder, _LeanFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _LeanFinder())


class _LeanFinder(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname not in (*LARGE, COMPILED):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _LeanLoader(spec.loader)
        return spec


class _LeanLoader(importlib.abc.Loader):
    """The loader of a module, which hides libraries while the module is executed."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = module.__loader__ = self._loader  # as if there were no other
        name = module.__name__
        with ExitStack() as changes:
            changes.enter_context(_collecting_later())
            changes.enter_context(hide(*UNUSED.get(name, ())))
            if name == COMPILED:
                changes.enter_context(_delay_compiler())
            if name == NOT_COMPILED:
                changes.enter_context(_disable_later())
            self._loader.exec_module(module)


@contextmanager
def _collecting_later() -> Iterator[None]:
    """Collect no garbage within the ``with`` body, and let later collections pass over what was made there."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.freeze()


@contextmanager
def _delay_compiler() -> Iterator[None]:
    """Let ``from torch._dynamo.utils import is_compile_supported`` import nothing, within the ``with`` body.

    The function imports torch's compiler when it is called; every other name imports it at once.
    """
    if COMPILER in sys.modules:
        yield
        return
    stand_ins = {name: ModuleType(name) for name in (COMPILER, f"{COMPILER}.utils")}
    package, utils = stand_ins.values()

    def remove() -> None:
        for name, stand_in in stand_ins.items():
            if sys.modules.get(name) is stand_in:
                del sys.modules[name]

    def import_at_once(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        remove()
        return getattr(importlib.import_module(utils.__name__), name)

    def is_compile_supported(device_type: str) -> Any:
        return import_at_once("is_compile_supported")(device_type)

    vars(package).update(__path__=[], utils=utils)
    vars(utils).update(is_compile_supported=is_compile_supported, __getattr__=import_at_once)
    sys.modules.update(stand_ins)
    try:
        yield
    finally:
        remove()


@contextmanager
def _disable_later() -> Iterator[None]:
    """Let ``torch.compiler.disable`` import torch's compiler when a function that it decorates is called, not before.

    torch has such a form of it for its own functions, ``torch._disable_dynamo``; without it, nothing changes.
    """
    torch = importlib.import_module("torch")
    at_once = torch.compiler.disable
    torch.compiler.disable = getattr(torch, "_disable_dynamo", at_once)
    try:
        yield
    finally:
        torch.compiler.disable = at_once


@contextmanager
def hide(*names: str) -> Iterator[None]:
    """Let top-level packages that aren't imported yet seem not to be installed, within the ``with`` body."""
    hidden = {name: None for name in names if name not in sys.modules}
    if not hidden:
        yield
        return
    sys.modules.update(hidden)  # type: ignore[arg-type]  # documented: None raises ModuleNotFoundError
    try:
        with _unmet(hidden):
            yield
    finally:
        for name in hidden:
            if sys.modules.get(name, hidden) is None:
                del sys.modules[name]


@contextmanager
def _unmet(names: dict[str, None]) -> Iterator[None]:
    """Let Lightning's requirements of these libraries be unmet: it looks for what pip has installed.

    A requirement that is asked only later, when a function needs it, is then met.
    """
    try:
        from lightning_utilities.core.imports import RequirementCache, module_available, package_available
    except ImportError:  # Lightning isn't installed, or is of a version that has these elsewhere
        yield
        return
    cache: Any = RequirementCache
    original = cache.__bool__

    def is_met(requirement: Any) -> bool:
        if re.split("[^a-z]", str(requirement.requirement))[0] in names:  # "scipy>=1.8.0"
            requirement.available = False
            requirement.message = f"{requirement.requirement} isn't imported by dml's commands"
        return bool(original(requirement))

    cache.__bool__ = is_met
    try:
        yield
    finally:
        cache.__bool__ = original
        package_available.cache_clear()
        module_available.cache_clear()
