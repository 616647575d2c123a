"""The configuration groups as ``--help`` lists them."""

import textwrap
from collections.abc import Iterator
from functools import partial
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from omegaconf import OmegaConf

ORDER = ("dataset", "model", "loss", "transform", "sampler", "optimizer", "scheduler", "evaluation", "trainer")
"""The groups that most users choose from, in the order in which they meet them; the others follow by name."""

EXPERIMENTS = "experiment"
WIDTH = 80


def group_help() -> str:
    """Resolve ``${group_help:}``: the choices of each group, those of every run first, the papers' experiments last."""
    _list_from_repository()
    groups = list(_find_groups())
    ordered = [group for group in ORDER if group in groups]
    ordered += [group for group in groups if group not in ORDER and not _is_experiment(group)]
    experiments = [group for group in groups if _is_experiment(group) and not group.endswith("/settings")]
    heading = "Experiments of the papers, such as experiment=rll/I/rll_simpler:"
    return "\n".join([*map(_format_group, ordered), "", heading, "", *map(_format_group, experiments)])


def _list_from_repository() -> None:
    """Let the loader list groups and choices without copying all configurations each time, 600 times in one help.

    Hydra copies them to add what overrides put on its search path, and passes no overrides for its help.
    """
    loader: Any = GlobalHydra.instance().config_loader()
    if hasattr(loader, "repository"):
        loader.get_group_options = loader.repository.get_group_options
        loader.list_groups = partial(loader.repository.get_group_options, results_filter=ObjectType.GROUP)


def _is_experiment(group: str) -> bool:
    return group.split("/")[0] == EXPERIMENTS


def _find_groups(parent: str = "") -> Iterator[str]:
    """Yield the groups below a group, at any depth, by name; Hydra's own are not among them."""
    loader = GlobalHydra.instance().config_loader()
    for name in sorted(loader.list_groups(parent)):
        group = f"{parent}/{name}" if parent else name
        if group != "hydra":
            if loader.get_group_options(group):
                yield group
            yield from _find_groups(group)


def _format_group(group: str) -> str:
    choices = ", ".join(sorted(GlobalHydra.instance().config_loader().get_group_options(group)))
    return textwrap.fill(f"{group}: {choices}", WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def register_group_help() -> None:
    """Register the resolver that the text of ``--help`` calls."""
    OmegaConf.register_new_resolver("group_help", group_help, replace=True)
