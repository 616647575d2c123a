import shlex

import pytest
from configurations import compose
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from dml.run.config_folders import CONF
from dml.run.stored_configuration import (
    FORMER_LEARNING_RATE,
    LEARNING_RATE,
    StoredConfiguration,
    check_unchanged,
    extract_configuration,
    keep_choices,
    plain_config,
)
from dml.runtime.configuration import key_of
from dml.runtime.errors import InputError

STORED = StoredConfiguration(["loss=rll", "loss.margin=0.4"], {"loss": {"margin": 0.4, "alpha": None}, "seed": 0})


def config(margin: float = 0.4, seed: int = 0, **more: object) -> object:
    return OmegaConf.create({"loss": {"margin": margin, "alpha": None}, "seed": seed, "resume": "folder", **more})


def test_what_is_as_it_was_passes() -> None:
    check_unchanged(config(), ["loss=rll", "loss.margin=0.4", "resume=folder"], STORED)


def test_a_threshold_is_chosen_as_the_present_version_does() -> None:
    stored = StoredConfiguration(
        [], STORED.config | {"evaluation": {"threshold": {"fmr": 0.001, "seed": 0}, "alpha": 1}}
    )
    now = {"threshold": {"wrong_share": 0.05, "fmr": None}, "alpha": 1}
    check_unchanged(config(evaluation=now), [], stored)
    with pytest.raises(InputError, match=r"^evaluation\.alpha=2: the run was made with 1"):
        check_unchanged(config(evaluation={**now, "alpha": 2}), [], stored)


def test_nothing_of_a_checkpoints_configuration_is_resolved() -> None:
    foreign = {"data": {"background": "${oc.env:NONE_OF_THIS_NAME}"}}
    assert extract_configuration({"run": {"overrides": [], "config": foreign}}).config == foreign


@pytest.mark.parametrize("override", ["loss.margin=0.2", "loss=rll_other", "experiment=rll/some"])
def test_what_is_asked_for_may_differ(override: str) -> None:
    check_unchanged(config(margin=0.2), ["loss=rll", override], STORED)


def test_an_override_that_another_had_replaced_can_be_given_again() -> None:
    stored = StoredConfiguration(["loss.margin=0.2", "loss.margin=0.4"], STORED.config)
    check_unchanged(config(margin=0.2), ["loss.margin=0.2"], stored)


def test_what_nobody_asked_for_may_not() -> None:
    with pytest.raises(InputError, match=r"was made with 0, and conf/ or the environment has changed since"):
        check_unchanged(config(seed=1), ["loss=rll", "loss.margin=0.4"], STORED)
    with pytest.raises(InputError, match=r"data=5: the run was made with null"):
        check_unchanged(config(data=5), ["loss=rll", "loss.margin=0.4"], STORED)


def test_all_values_that_keep_the_run_as_it_was_are_named() -> None:
    stored = StoredConfiguration([], {"a": None, "b": True, "c": "two words", "d": 1e-4, "e": "${seed}", "f": "sop"})
    with pytest.raises(InputError) as refused:
        check_unchanged(OmegaConf.create({"a": 1, "b": 2, "c": "3", "d": 4, "e": 5, "f": "6"}), [], stored)
    line = str(refused.value)
    assert line.startswith("a=1: the run was made with null, and conf/ or the environment has changed since; give ")
    overrides = shlex.split(line.partition("give ")[2].removesuffix(" to go on as before"))
    parsed = OverridesParser.create().parse_overrides(overrides)
    assert {override.key_or_group: override.value() for override in parsed} == stored.config


@pytest.mark.parametrize("value", ["os.system", {"_target_": "os.system"}, [{"_target_": "os.system"}], "${evil}"])
def test_no_refusal_advises_to_type_code_of_a_strangers_file(value: object) -> None:
    key = "loss._target_" if isinstance(value, str) else "loss.x"
    stored = StoredConfiguration([], {"loss": {key.rpartition(".")[2]: value}})
    with pytest.raises(InputError, match="the run was made with other code") as refused:
        check_unchanged(OmegaConf.create({"loss": {"x": 1}}), [], stored)
    assert "os.system" not in str(refused.value)


def test_an_override_that_was_stored_with_the_value_of_its_interpolation_passes() -> None:
    stored = StoredConfiguration(["data=/photos"], STORED.config | {"data": "${oc.env:DATA}"})
    check_unchanged(config(data="/photos"), ["data=/photos"], stored)
    with pytest.raises(InputError, match="data=/photos: the run was made with"):
        check_unchanged(config(data="/photos"), [], StoredConfiguration([], stored.config))


def test_only_the_parts_that_matter_are_compared() -> None:
    check_unchanged(config(seed=1), ["loss=rll", "loss.margin=0.4"], STORED, parts=("loss",))


def test_the_key_of_an_override() -> None:
    assert [key_of(text) for text in ("loss=rll", "+a.b=1", "~c", "++d=")] == ["loss", "a.b", "c", "d"]


def test_a_run_that_trains_all_keeps_the_identity_of_before_there_was_frozen() -> None:
    assert plain_config(config(training={"frozen": False}))["training"] == {}
    assert plain_config(config(training={"frozen": True}))["training"] == {"frozen": True}


def test_a_run_whose_loss_is_sharded_keeps_the_identity_of_before() -> None:
    assert plain_config(config(training={"shard_loss": True}))["training"] == {}
    assert plain_config(config(training={"shard_loss": False}))["training"] == {"shard_loss": False}


def test_another_value_in_the_environment_is_another_run(monkeypatch: pytest.MonkeyPatch) -> None:
    interpolated = config(margin="${oc.decode:${oc.env:MARGIN}}", more="${seed}")
    monkeypatch.setenv("MARGIN", "0.4")
    assert plain_config(interpolated) == plain_config(config(more="${seed}"))
    monkeypatch.setenv("MARGIN", "0.2")
    assert plain_config(interpolated) == plain_config(config(margin=0.2, more="${seed}"))


def test_a_run_under_slurm_is_the_same_on_other_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_NNODES", "1")
    before = plain_config(compose("trainer=slurm"))
    monkeypatch.setenv("SLURM_NNODES", "2")
    assert plain_config(compose("trainer=slurm")) == before


def test_the_default_rate_is_that_of_older_versions_unless_the_heads_alone_learn() -> None:
    optimizer = OmegaConf.to_container(OmegaConf.load(CONF / "optimizer" / "adamw.yaml"), resolve=False)
    assert optimizer["lr"] == LEARNING_RATE
    assert plain_config(OmegaConf.create({"optimizer": optimizer}))["optimizer"]["lr"] == FORMER_LEARNING_RATE
    assert (
        plain_config(OmegaConf.create({"optimizer": optimizer, "training": {"frozen": True}}))["optimizer"]["lr"]
        == LEARNING_RATE
    )


def test_a_test_on_other_data_keeps_the_transform_if_it_is_still_that_of_the_run() -> None:
    stored = StoredConfiguration(["dataset=folder", "transform.size=64"], plain_config(compose("transform=imagenet")))
    stored.config["transform"]["size"] = 64
    others = ["sampler=class_balanced", "loss=rll"]
    assert keep_choices(stored, ["dataset=emoji"]) == ["transform=imagenet", *others]
    assert keep_choices(stored, ["dataset=emoji", "transform=rll"]) == others
    assert keep_choices(stored, ["dataset=emoji", "transform=rll", "sampler=hierarchical", "loss=nra"]) == []
    assert keep_choices(stored, ["split=val"]) == []
    stored.config["transform"] = plain_config(compose("transform=emoji"))["transform"]  # the former default of a folder
    with pytest.raises(InputError, match="transform: the run's is not transform=imagenet as conf/ has it now"):
        keep_choices(stored, ["dataset=emoji"])
