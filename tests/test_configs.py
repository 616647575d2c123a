"""Every configuration composes, names every parameter of what it builds, and keeps the code's defaults."""

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
from configurations import CONF, compose
from hydra.utils import get_method
from omegaconf import DictConfig, OmegaConf

from dml.run.checks import check_values

pytestmark = pytest.mark.pipeline

# tests/run/test_sweeps.py composes the launchers: they are Hydra's plugins, and not all are installed
GROUPS = sorted(path.name for path in CONF.iterdir() if path.is_dir() and path.name not in ("experiment", "launcher"))
CHOICES = [
    (group, str(path.relative_to(CONF / group).with_suffix("")))
    for group in GROUPS
    for path in sorted((CONF / group).rglob("*.yaml"))
]
FILLED_IN = {"num_classes", "embedding_dim"}


def combinations() -> list[dict[str, str]]:
    """Choices of all groups at once, as many times as the largest group has some: each is among them."""
    by_group = {group: [choice for of, choice in CHOICES if of == group] for group in GROUPS}
    largest = max(map(len, by_group.values()))
    return [{group: own[number % len(own)] for group, own in by_group.items() if own} for number in range(largest)]


COMBINATIONS = combinations()


def compose_all(choices: dict[str, str]) -> DictConfig:
    named = ["model.backbone.name=resnet18"] if choices["model"] == "timm" else []
    return compose(*(f"{group}={choice}" for group, choice in choices.items()), *named)


def compose_with(group: str, choice: str) -> DictConfig:
    """Compose a combination that has a choice: it is composed already."""
    return compose_all(next(choices for choices in COMBINATIONS if choices[group] == choice))


@pytest.mark.parametrize("choices", COMBINATIONS, ids=lambda choices: choices["loss"])
def test_every_choice_composes_and_passes_the_checks(choices: dict[str, str]) -> None:
    config = compose_all(choices)
    assert choices.keys() <= {*map(str, config)}
    if choices["dataset"] != "base":  # what the others have in common
        check_values("train", config)


@pytest.mark.parametrize(
    ("overrides", "transform"),
    [
        ((), "emoji"),
        (("dataset=folder",), "imagenet"),
        (("dataset=sop",), "imagenet"),
        (("dataset=folder", "transform=emoji"), "emoji"),
        (("experiment=rll/I/rll_simpler",), "rll"),
        (("experiment=happier/1/baseline_inat_base",), "happier_inat"),  # which holds another data set, too
    ],
)
def test_a_data_set_chooses_the_transform_if_nothing_else_does(overrides: tuple[str, ...], transform: str) -> None:
    assert compose(*overrides).transform == compose(f"transform={transform}").transform


def test_evaluate_composes_what_train_does() -> None:
    train, evaluate = compose(), compose("checkpoint=some.ckpt", command="evaluate")
    assert {key: evaluate[key] for key in train} == {key: train[key] for key in train}


def targets(node: Any) -> Iterator[DictConfig]:
    """The nodes with a ``_target_`` of this project, in whatever depth."""
    if OmegaConf.is_dict(node):
        if str(node.get("_target_", "")).startswith("dml."):
            yield node
        for key in node:
            if not OmegaConf.is_missing(node, key) and not OmegaConf.is_interpolation(node, key):
                yield from targets(node[key])
    elif OmegaConf.is_list(node):
        for item in node:
            yield from targets(item)


@pytest.mark.parametrize(("group", "choice"), [pair for pair in CHOICES if pair[0] in ("loss", "sampler")])
def test_a_file_lists_every_parameter_and_that_of_a_loss_its_default(group: str, choice: str) -> None:
    # a diff against another YAML departs from the defaults, and a sampler's are those of a paper
    has_defaults = group == "loss" and "defaults" not in OmegaConf.load(CONF / group / f"{choice}.yaml")
    for node in targets(compose_with(group, choice)[group]):
        parameters = inspect.signature(get_method(node._target_)).parameters
        given = {str(key) for key in node if not str(key).startswith("_")}
        assert given == parameters.keys() - {"labels", "rows"}, node._target_
        for name in given - FILLED_IN if has_defaults else ():
            if parameters[name].default is not inspect.Parameter.empty:
                assert node[name] == parameters[name].default, f"{node._target_}.{name}"
