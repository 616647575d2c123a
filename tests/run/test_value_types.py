import pytest
from configurations import compose
from omegaconf import OmegaConf

from dml.commands.required_values import select_used_parts
from dml.run.config_folders import CONF
from dml.run.settings import SETTINGS
from dml.run.value_types import check_types
from dml.runtime.configuration import flat
from dml.runtime.errors import InputError

WRONG = {
    "loss.margin=abc": "loss.margin=abc: must be a number",
    "trainer.precision=fp16": "must be one of .*16-mixed.*null; is it 16-mixed",
    "sampler.images_per_class=2.5": "sampler.images_per_class=2.5: must be a whole number",
    "seed=true": "seed=true: must be a whole number",
    "transform.size=big": "transform.size=big: must be a whole number",
    "data.on_corrupt=skp": "data.on_corrupt=skp: must be one of raise, skip; is it skip",
    "dataset.queries_in_gallery=no_copies": "dataset.queries_in_gallery=no_copies: must be true or false or null",
    "scheduler.warmup_steps=null": "scheduler.warmup_steps=null: must be a whole number",
    "loss.margin=[1,2]": r"loss.margin=\[1,2\]: must be a number",
    "optimizer.lr=[null,true]": r"optimizer.lr=\[null,true\]: must be a number",
    "training.ema=1": "training.ema=1: must be a number, above 0 and below 1, or null",
    "training.bank_every_n_steps=0": "training.bank_every_n_steps=0: must be a whole number, 1 or more, or null",
    "training.matmul_precision=tf32": "training.matmul_precision=tf32: must be one of highest, high, medium, null",
    "evaluation.crops=3": "evaluation.crops=3: must be one of 1, 2, 5, 10",
    "evaluation.reranking=dba": "evaluation.reranking=dba: must be one of alpha_qe, k_reciprocal, null",
    "scheduler.loss=abc": "scheduler.loss=abc: must be a mapping or null",
    "scheduler.warmup_epochs=-1": "scheduler.warmup_epochs=-1: must be a number, 0 or more, or null",
    "evaluation.validation_metrics=nmi": "evaluation.validation_metrics=nmi: must be one of auto, a list",
    "data.num_workers=many": "data.num_workers=many: must be one of auto, a whole number",
    "data.pin_memory=yes": "data.pin_memory=yes: must be one of auto, true or false",
    "training.gradient_cache=0": "training.gradient_cache=0: must be a whole number, 1 or more, or null",
    "evaluation.threshold.wrong_share=nan": "wrong_share=nan: must be a number, above 0 and below 1",
    "evaluation.threshold.fmr=1": "fmr=1: must be a number, above 0 and below 1, or null",
}


@pytest.mark.parametrize("override", WRONG)
def test_a_value_of_another_type_is_refused_with_what_would_be_right(override: str):
    with pytest.raises(InputError, match=WRONG[override]):
        check_types(compose("dataset=folder", f"++{override}"))


def test_a_whole_number_may_be_written_as_1e3():
    config = compose("dataset=folder", "trainer.max_steps=1e3", "seed=1e1")
    config.trainer.limit_val_batches, config.loss.margin, changes = 1.0, 1.0, OmegaConf.create({"seed": 10.0})
    check_types(config, changes)
    assert [repr(value) for value in (config.trainer.max_steps, config.seed, changes.seed)] == ["1000", "10", "10"]
    assert isinstance(config.trainer.limit_val_batches, float)  # a share
    assert isinstance(config.loss.margin, float)
    with pytest.raises(InputError, match=r"^seed=0\.5: must be a whole number"):
        check_types(compose("seed=0.5"))


def test_every_whole_number_may_be_written_with_a_point():
    config = compose("dataset=folder", "trainer.max_epochs=3")
    whole = {key for key, value in flat(OmegaConf.to_container(config, resolve=False)).items() if type(value) is int}
    for key in whole:
        OmegaConf.update(config, key, float(OmegaConf.select(config, key)))
    check_types(config)
    values = {key: OmegaConf.select(config, key) for key in whole}
    assert {key for key, value in values.items() if isinstance(value, float) and value > 1} == {
        "checkpoints.every_n_seconds"
    }


@pytest.mark.parametrize("command", ["prepare", "inspect"])
@pytest.mark.parametrize("value", ["2.5", "x", "true"])
def test_a_number_of_processes_is_a_whole_number(command: str, value: str):
    config = compose(f"processes={value}", command=command)
    with pytest.raises(InputError, match=rf"^processes={value}: must be a whole number, 1 or more, or null$"):
        check_types(select_used_parts(command, config), command=command)


@pytest.mark.parametrize(
    "override",
    [
        "trainer.precision=16",
        "trainer.precision=bf16-mixed",
        "trainer.devices=2",
        "optimizer.lr=1",
        "training.ema=0.99",
        "training.ema=null",
    ],
)
def test_what_a_parameter_takes_passes(override: str):
    check_types(compose(override))


def test_unannotated_parameters_take_the_type_of_their_default():
    config = OmegaConf.create({"loss": {"_target_": "pytorch_metric_learning.losses.TripletMarginLoss", "margin": "x"}})
    with pytest.raises(InputError, match=r"loss.margin=x: must be a number"):
        check_types(config)
    with pytest.raises(InputError, match=r"loss.margin=\[1\]: must be a number"):
        check_types(OmegaConf.create({"loss": {**config.loss, "margin": [1]}}))
    check_types(OmegaConf.create(OmegaConf.to_container(config) | {"loss": {**config.loss, "margin": 1}}))


def test_a_number_in_the_place_of_a_list_is_told():
    config = OmegaConf.create({"loss": {"_target_": "dml.losses.csl.CSLLoss", "margins": 0.3}})
    with pytest.raises(InputError, match=r"loss\.margins=0\.3: must be a list, such as 'loss\.margins=\[0\.3\]'"):
        check_types(config)


def test_lists_pass_where_a_parameter_may_take_them():
    transform = {"_target_": "torchvision.transforms.v2.RandomErasing", "value": [0, 0, 0]}
    angles = {"_target_": "torchvision.transforms.v2.ColorJitter", "brightness": [0.5, 1.5]}
    relevance = {"_target_": "dml.losses.csl.CSLLoss", "margins": [0.3]}
    distance = {
        "_target_": "pytorch_metric_learning.losses.TripletMarginLoss",
        "margin": {"_target_": "builtins.float"},
    }
    transforms = {"size": 1, "train": {"steps": [transform, angles]}, "test": {}}
    check_types(OmegaConf.create({"transform": transforms, "loss": relevance, "sampler": distance}))


def test_nodes_in_lists_are_checked():
    config = OmegaConf.create({"model": [{"_target_": "dml.losses.rll.RankedListLoss", "margin": "x"}]})
    with pytest.raises(InputError, match=r"model\[0\].margin=x: must be a number"):
        check_types(config)


@pytest.mark.parametrize(
    ("command", "override", "line"),
    [
        ("prepare", "sheet.pictures=-1", "sheet.pictures=-1: must be a whole number, 1 or more"),
        ("prepare", "verify=true", "verify=true: must be one of stamp, content"),
        ("prepare", "resize=abc", "resize=abc: must be a whole number or null"),
        ("inspect", "components=0", "components=0: must be a whole number, 1 or more, or null"),
    ],
)
def test_keys_of_a_command_alone_are_checked(command: str, override: str, line: str):
    with pytest.raises(InputError, match=f"^{line}$"):
        check_types(compose(override, command=command), command=command)


@pytest.mark.parametrize("command", SETTINGS)
def test_every_key_of_a_command_is_declared(command: str):
    check_types(compose("dataset=folder", command=command), command=command)


def test_a_key_that_is_not_there_is_told_with_the_nearest():
    config = compose("+data.workers=2")
    with pytest.raises(InputError, match=r"^data\.workers: no such key; nearest: num_workers"):
        check_types(config)


@pytest.mark.pipeline
@pytest.mark.parametrize("group", ["dataset", "transform", "model", "loss", "sampler", "optimizer", "scheduler"])
def test_every_choice_passes(group: str):
    for path in (CONF / group).glob("*.yaml"):
        check_types(compose(f"{group}={path.stem}"))


def test_a_test_and_a_preparation_import_only_what_they_build(monkeypatch: pytest.MonkeyPatch):
    config = compose("loss._target_=antigravity.Loss", "model._target_=dml.nowhere.Model")
    monkeypatch.setattr("dml.run.value_types.resolve_name", lambda target: imported.append(target) or object)
    imported: list[str] = []
    check_types(select_used_parts("evaluate", config), command="evaluate")
    assert "dml.nowhere.Model" in imported
    assert not {"antigravity.Loss", config.sampler._target_} & {*imported}
    imported.clear()
    check_types(select_used_parts("prepare", config), command="prepare")
    assert imported == [config.dataset.reader._target_]
    imported.clear()
    check_types(select_used_parts("train", config))
    assert "antigravity.Loss" in imported


def test_a_target_that_is_not_there_is_left_to_the_builder():
    check_types(compose("loss._target_=dml.losses.nowhere.Loss"))
