"""The one function that builds the objects which a configuration describes."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from hydra.utils import instantiate
from omegaconf import OmegaConf

from dml.runtime.errors import InputError
from dml.runtime.targets import Unknown, unknown_targets
from dml.runtime.text import printable

_trusted: ContextVar[Collection[Unknown] | None] = ContextVar("trusted", default=())


@contextmanager
def trusting(targets: Collection[Unknown] | None) -> Iterator[None]:
    """Let `build` build unknown objects in the ``with`` statement: those that the user's own command line names.

    Args:
        targets: the unknown objects; None means all.
    """
    token = _trusted.set(targets)
    try:
        yield
    finally:
        _trusted.reset(token)


def build(config: Any, *arguments: Any, **settings: Any) -> Any:
    """Build the object that a node of a configuration describes, as `hydra.utils.instantiate` does.

    The node is resolved first. Exactly these plain values are checked and then built, so that nothing is built that
    wasn't looked at. Without `trusting`, all objects have to be known, because the configuration may be a stranger's.

    Other values than nodes are returned as they are. The settings replace arguments of the node; ``_convert_`` is
    Hydra's.

    Raises:
        InputError: if the node names an unknown object.
    """
    if not OmegaConf.is_config(config):
        return config
    path = config._get_full_key(None).replace("[", ".").replace("]", "")
    plain: Any = OmegaConf.to_container(config, resolve=True)
    check_targets(plain, path)
    tree = plain
    for key in reversed(path.split(".") if path else []):  # error lines name the whole key
        tree = {key: tree}
    node = OmegaConf.create(tree)
    return instantiate(OmegaConf.select(node, path) if path else node, *arguments, **settings)


def check_targets(plain: Any, path: str) -> None:
    """Make sure that a part of a configuration names no object that is unknown and not trusted.

    Args:
        plain: plain values, with interpolations resolved.
        path: dotted key of the part.

    Raises:
        InputError: if it names one.
    """
    if (trusted := _trusted.get()) is None:
        return
    if unknown := [target for target in unknown_targets(plain, path) if target not in trusted]:
        raise InputError(f"{describe_unknown(unknown)} is not known and could run any code")


def describe_unknown(unknown: Collection[Unknown]) -> str:
    """Format unknown objects for an error line, so that a terminal may show them.

    >>> describe_unknown([Unknown("model._target_", "os.system")])
    'model._target_=os.system'
    """
    return ", ".join(f"{printable(path)}={printable(value)}" for path, value in unknown)
