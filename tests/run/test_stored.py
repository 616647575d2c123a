import pytest
from omegaconf import OmegaConf

from dml.ops.errors import InputError
from dml.run.stored import Stored, check_unchanged, key_of

STORED = Stored(["loss=rll", "loss.margin=0.4"], {"loss": {"margin": 0.4, "alpha": None}, "seed": 0})


def config(margin: float = 0.4, seed: int = 0, **more: object) -> object:
    return OmegaConf.create({"loss": {"margin": margin, "alpha": None}, "seed": seed, "resume": "folder", **more})


def test_what_is_as_it_was_passes() -> None:
    check_unchanged(config(), ["loss=rll", "loss.margin=0.4", "resume=folder"], STORED)


@pytest.mark.parametrize("override", ["loss.margin=0.2", "loss=rll_other", "experiment=rll/some"])
def test_what_is_asked_for_may_differ(override: str) -> None:
    check_unchanged(config(margin=0.2), ["loss=rll", override], STORED)


def test_what_nobody_asked_for_may_not() -> None:
    with pytest.raises(InputError, match=r"seed=1: the run was made with 0, and conf/ has changed since"):
        check_unchanged(config(seed=1), ["loss=rll", "loss.margin=0.4"], STORED)
    with pytest.raises(InputError, match=r"data=5: the run was made with None"):
        check_unchanged(config(data=5), ["loss=rll", "loss.margin=0.4"], STORED)


def test_only_the_parts_that_matter_are_compared() -> None:
    check_unchanged(config(seed=1), ["loss=rll", "loss.margin=0.4"], STORED, parts=("loss",))


def test_the_key_of_an_override() -> None:
    assert [key_of(text) for text in ("loss=rll", "+a.b=1", "~c", "++d=")] == ["loss", "a.b", "c", "d"]
