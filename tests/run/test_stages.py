import pytest
from omegaconf import DictConfig, OmegaConf

from dml.run.stored import find_stage, list_stages
from dml.runtime.errors import InputError


def config(**stages: object) -> DictConfig:
    made = OmegaConf.create(
        {
            "seed": 3,
            "sampler": {"_target_": "ClassBalanced", "classes_per_batch": 4, "seed": "${seed}"},
            "trainer": {"max_steps": 10, "devices": 1},
            "recurrent": None,
            "stages": stages,
        }
    )
    OmegaConf.set_struct(made, True)
    return made


def test_without_stages_a_run_has_one() -> None:
    (only,) = list_stages(config())
    assert only.name == ""
    assert only.config == config()


def test_a_stage_changes_single_values_and_replaces_objects() -> None:
    whole = config(
        first={"sampler": {"_target_": "Local", "size": 8, "seed": "${seed}"}, "trainer": {"max_steps": 5}},
        second={},
        third={"recurrent": {"_target_": "Recurrent", "inner": {"size": 2}}, "sampler": {"classes_per_batch": 2}},
    )
    first, second, third = list_stages(whole)
    assert [first.name, second.name, third.name] == ["first", "second", "third"]
    assert first.config.sampler == {"_target_": "Local", "size": 8, "seed": 3}
    assert first.config.trainer == {"max_steps": 5, "devices": 1}
    assert second.config == config()
    assert third.config.sampler == {"_target_": "ClassBalanced", "classes_per_batch": 2, "seed": 3}
    assert third.config.recurrent == {"_target_": "Recurrent", "inner": {"size": 2}}
    assert whole.trainer.max_steps == 10  # the run's configuration stays as it is
    assert find_stage(list_stages(whole), "third").config == third.config


def test_a_stage_may_change_nothing() -> None:
    first, second = list_stages(config(first=None, second={}))
    assert first.config == second.config == config()


def test_what_a_stage_takes_from_elsewhere_is_of_the_stage() -> None:
    whole = config(own={"seed": 7})
    assert find_stage(list_stages(whole), "own").config.sampler.seed == 7


def test_an_unknown_stage_is_refused() -> None:
    with pytest.raises(InputError, match=r"checkpoint of stage lns: this run's stages are n_pair"):
        find_stage(list_stages(config(n_pair={})), "lns")
    with pytest.raises(InputError, match=r"checkpoint of stage lns: this run's stages are none"):
        find_stage(list_stages(config()), "lns")
