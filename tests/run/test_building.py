"""One function builds what a configuration describes, and it looks at what it builds."""

import re
from collections import Counter
from datetime import timedelta
from functools import partial

import pytest
from conftest import ROOT
from hydra.errors import InstantiationException
from omegaconf import OmegaConf

from dml.data.transforms import Resize
from dml.run.building import build, trusting
from dml.runtime.errors import InputError
from dml.runtime.targets import Unknown

RESIZE = {"_target_": "dml.data.transforms.Resize", "mode": "warp", "size": "${size}"}


def test_hydras_instantiate_is_called_in_one_place() -> None:
    callers = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "dml").rglob("*.py"))
        if re.search(r"hydra\.utils|\binstantiate\(|hydra\._internal", path.read_text())
    ]
    assert callers == ["dml/run/building.py"]


def test_references_are_resolved_before_they_are_built() -> None:
    config = OmegaConf.create({"size": 28, "transform": {"test": RESIZE, "list": [RESIZE]}})
    built = build(config.transform.test)
    assert isinstance(built, Resize)
    assert built.size == 28
    assert build(config.transform.list)[0].size == 28


def test_arguments_and_other_values() -> None:
    assert build(None) is None
    assert build("rll") == "rll"
    config = OmegaConf.create({"trainer": {"_target_": "datetime.timedelta", "_partial_": True}})
    made = build(config.trainer, minutes=2)
    assert isinstance(made, partial)
    assert made() == timedelta(minutes=2)


def test_an_error_names_the_whole_key() -> None:
    config = OmegaConf.create({"transform": {"test": {**RESIZE, "size": 28, "color": 3}}})
    with pytest.raises(InstantiationException, match=r"full_key: transform\.test"):
        build(config.transform.test)


@pytest.mark.parametrize(
    ("node", "named"),
    [
        ({"_target_": "collections.Counter"}, "loss._target_=collections.Counter"),
        ("${other}", "other._target_=collections.Counter"),
        ({"x": [{"y": "${other}"}]}, "loss.x.0.y._target_=collections.Counter"),
        ({"_target_": "${name}"}, "loss._target_=collections.Counter"),
        ({"_target_": "dml.data.transforms.Resize"}, "loss._target_=dml.data.transforms.Resize"),
        ({"x": "${dollar}{name}"}, r"loss.x=\$\{name\}"),
    ],
)
def test_what_is_unknown_is_not_built(node: object, named: str) -> None:
    config = OmegaConf.create(
        {"loss": node, "other": {"_target_": "collections.Counter"}, "name": "collections.Counter", "dollar": "$"}
    )
    with pytest.raises(InputError, match=f"{named} is not known and could run any code"):
        build(config.loss)


def test_what_the_command_line_names_is_built_there_and_while_it_is_trusted() -> None:
    config = OmegaConf.create({"loss": {"_target_": "collections.Counter"}, "model": {"x": "${loss}"}})
    named = [Unknown("loss._target_", "collections.Counter")]
    with trusting(named):
        assert build(config.loss) == Counter()
        with pytest.raises(InputError, match=r"model.x._target_=collections.Counter is not known"):
            build(config.model)
        with trusting(()), pytest.raises(InputError, match="is not known"):
            build(config.loss)
    with trusting(None):
        assert build(config.model).x == Counter()
    with pytest.raises(InputError, match="is not known"):
        build(config.loss)
