"""What the overrides in a file may do; the whole attack, with a pickle, is in tests/test_stored_runs.py."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT
from hydra import compose, initialize_config_dir

from dml.commands.trust import check_overrides, check_targets, file_source, is_trusted
from dml.runtime.errors import InputError

pytestmark = pytest.mark.pipeline

RESUMED = ["resume=some/run"]


@pytest.fixture(autouse=True)
def _conf() -> Iterator[None]:
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        yield


@pytest.mark.parametrize(
    "override",
    [
        "loss=rll",
        "experiment=rll/I/rll_simpler",
        "~recurrent",
        "+loss.extra=[1,2.5,null,true]",
        "++transform.size=${model.embed_dim}",
        "transform.test.steps.0.size=48",
        "dataset.root=/data/some folder/../images",
        "training.init=../other/checkpoints/best.ckpt",
        "+loss@loss.terms.level0.loss=triplet",
        "model.head={L: {_target_: dml.models.heads.PoolHead, _partial_: true}}",
        "loss.text='$5 {a} \\$'",
    ],
)
def test_values_and_choices_are_taken(override: str) -> None:
    check_overrides([override], RESUMED)


@pytest.mark.parametrize(
    ("override", "fault"),
    [
        ("--experimental-rerun=/tmp/evil.pickle", "is not one"),
        ("={hydra: {verbose: true}}", "says how to run"),
        ("hydra.searchpath=[file:///tmp/evil]", "says how to run"),
        ("+hydra.callbacks.x._target_=os.system", "says how to run"),
        ("++hydra={callbacks: {x: {_target_: os.system}}}", "says how to run"),
        ("hydra.sweeper._target_=os.system", "says how to run"),
        ("hydra/launcher=joblib", "says how to run"),
        ("+hydra.job.env_set.LD_PRELOAD=/tmp/evil.so", "says how to run"),
        ("hydra.run.dir=/home/somebody", "says how to run"),
        ("+loss@hydra.callbacks.x=rll", "says how to run"),
        ("_global_.hydra.verbose=true", "says how to run"),
        ("++trust=true", "says how to run"),
        ("sweep@loss=optuna", "says how to run"),
        ("loss.margin=0.2,0.4", "gives several values"),
        ("loss=glob(*)", "gives several values"),
        ("+loss.x=${oc.env:HOME}", "reads what is outside"),
        ("+loss.x='\\${oc.env:HOME}'", "reads what is outside"),
        ("+loss.x='${oc.env:${seed},${oc.env:HOME}}'", "reads what is outside"),
        ("+loss.x='${${seed}:HOME}'", "reads what is outside"),
        ("+loss.x=[1,{a: '${oc.env:HOME}'}]", "reads what is outside"),
        ("+loss.x='${oc.create:{_target_: os.system}}'", "reads what is outside"),
        ("+loss.x='${oc.decode:x}'", "reads what is outside"),
        ("+loss.x=${hydra:runtime.cwd}", "reads what is outside"),
        ("+loss.x=${now:%Y}", "reads what is outside"),
        ("loss=../../tmp/evil", "names a file"),
        ("loss='..\\\\evil'", "names a file"),
        ("experiment=[rll/I/rll_simpler,../evil]", "names a file"),
        ("+loss@loss.terms.x=../evil", "names a file"),
    ],
)
def test_what_does_more_is_refused_unless_the_file_is_trusted(override: str, fault: str) -> None:
    with pytest.raises(InputError, match=rf"resume=some/run: its override .* {fault}.*; trust=true if you trust"):
        check_overrides(["loss=rll", override], RESUMED)
    check_overrides(["loss=rll", override], [*RESUMED, "trust=true"])


def test_only_the_command_line_can_trust() -> None:
    assert is_trusted(["resume=x", "trust=True"])
    assert is_trusted(["resume=x", "++trust=true"])
    assert not is_trusted(["resume=x", "trust=false", "+loss.x=trust=true", "~trust=true"])


def test_the_file_is_named_by_its_argument() -> None:
    assert file_source(["seed=1", "checkpoint=a/b=c.ckpt"]) == "checkpoint=a/b=c.ckpt"
    assert file_source(["seed=1", "resume="]) is None


def test_control_characters_do_not_reach_the_terminal() -> None:
    with pytest.raises(InputError) as refused:
        check_overrides(["\x1b[2Jhydra=1"], RESUMED)
    assert "\x1b" not in str(refused.value)


def refusal(*stored: str, command: str = "train", arguments: tuple[str, ...] = ()) -> str:
    """What is said of a file that holds the overrides, "" if it may build what they name."""
    source = "checkpoint=some.ckpt" if command == "evaluate" else "resume=some/run"
    check_overrides(stored, [source])
    config = compose(command, overrides=[*stored, source, *arguments])
    try:
        check_targets(command, config, [source, *arguments])
    except InputError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("experiment", ["rll/I/rll_simpler", "lns/4.1/iterations", "happier/2/sum_tl_sh_dyml_vehicle"])
def test_the_projects_own_runs_need_no_trust(experiment: str) -> None:
    assert refusal(f"experiment={experiment}", "+loss.extra=1", "trainer=ddp") == ""
    assert refusal(f"experiment={experiment}", command="evaluate") == ""


@pytest.mark.parametrize("trainer", ["default", "ddp"])
@pytest.mark.parametrize("loss", sorted(path.stem for path in (ROOT / "conf" / "loss").glob("*.yaml"))[::4])
def test_neither_do_its_choices(loss: str, trainer: str) -> None:
    assert refusal(f"loss={loss}", f"trainer={trainer}", "model=timm", "model.backbone.name=resnet18") == ""


LOAD = "{_target_: torch.load, weights_only: false, f: evil.pickle}"


@pytest.mark.parametrize(
    ("stored", "named"),
    [
        ([f"+transform.test.x={LOAD}"], "transform.test.x._target_=torch.load"),
        (["+transform.test.x._target_=torch.load"], "transform.test.x._target_=torch.load"),
        ([f"+transform.test.x=[1,[{{a: {LOAD}}}]]"], "transform.test.x.1.0.a._target_=torch.load"),
        (
            ["+transform.test.x={_target_: functools.partial, _args_: [os.system, id]}"],
            "transform.test.x._target_=functools.partial",
        ),
        (
            ["+model.x={_target_: os.system, _partial_: true, _convert_: all, _recursive_: false}"],
            "model.x._target_=os.system",
        ),
        # behind interpolations
        (["+dataset.name2=torch.load", "transform.test._target_=${dataset.name2}"], "transform.test._target_=torch"),
        (["+a.m=torch", "+a.n=load", "+model.x._target_=${a.m}.${a.n}"], "model.x._target_=torch.load"),
        (["+seed2=_target_", "+a={b: os.system}", "+model.x._target_=${a.b}"], "model.x._target_=os.system"),
        ([f"+evil={LOAD}", "+model.x=${evil}"], "model.x._target_=torch.load"),
        (["+d=$", "+model.x='${d}{oc.env:HOME}'"], "model.x=${oc.env:HOME}"),
        (["+d=$", "+model.x._target_='${d}{evil}'", "+evil=os.system"], "model.x._target_=${evil}"),
        # a known one that lends its module's imports
        (["model._target_=dml.models.networks.torch.load"], "model._target_=dml.models.networks.torch.load"),
        (
            ["dataset.reader._target_=dml.run.builders.instantiate"],
            "dataset.reader._target_=dml.run.builders.instantiate",
        ),
        # in a stage
        (["+stages={s: {model: {_target_: os.system}}}"], "model._target_=os.system"),
        (["+stages={s: {model._target_: os.system}}"], "model._target_=os.system"),
        (["+stages={a: {}, b: {dataset: {reader: {_target_: os.system}}}}"], "dataset.reader._target_=os.system"),
    ],
)
@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_unknown_targets_are_refused_by_name(stored: list[str], named: str, command: str) -> None:
    line = refusal(*stored, command=command)
    assert named in line
    assert line.endswith("comes from this file, is not known and could run any code; trust=true if you trust this file")


@pytest.mark.parametrize("compiled", ["true", "null", "{mode: max-autotune, dynamic: false, fullgraph: true}"])
def test_a_file_may_say_that_and_how_a_network_is_compiled(compiled: str) -> None:
    assert refusal(f"training.compile={compiled}", f"+stages={{s: {{training.compile: {compiled}}}}}") == ""


DDP = "pytorch_lightning.strategies.DDPStrategy"


@pytest.mark.parametrize(
    ("stored", "named"),
    [
        (["training.compile={options: {cpp.cxx: [evil]}}"], "training.compile.options="),
        (["+training.compile.options={cpp.cxx: [evil]}"], "training.compile.options="),
        (["training.compile={backend: inductor}"], "training.compile.backend=inductor"),
        (["training.compile={mode: default, name: x}"], "training.compile.name=x"),
        (["+seed2={options: {a: b}}", "training.compile=${seed2}"], "training.compile.options="),
        ([f"trainer.strategy={{_target_: {DDP}, ddp_comm_hook: x}}"], "trainer.strategy.ddp_comm_hook=x"),
        ([f"trainer.strategy={{_target_: {DDP}, _args_: [x]}}"], "trainer.strategy._args_="),
        (["+logger.loggers.x={_target_: pytorch_lightning.loggers.CSVLogger, prefix: a}"], "logger.loggers.x.prefix=a"),
    ],
)
def test_mappings_that_a_library_takes_are_limited_in_a_file(stored: list[str], named: str) -> None:
    line = refusal(*stored)
    assert named in line
    assert line.endswith("comes from this file, is not known and could run any code; trust=true if you trust this file")


def test_the_command_line_says_how_its_own_network_is_compiled() -> None:
    assert refusal("loss=nra", arguments=("training.compile={backend: eager}",)) == ""
    assert "training.compile.options=" in refusal("training.compile={options: {a: b}}", arguments=("loss=nra",))
    assert refusal("trainer=ddp") == ""


def test_what_only_training_builds_is_not_held_against_an_evaluation() -> None:
    stored = ["loss._target_=mine.Loss", "sampler._target_=mine.Sampler", "optimizer._target_=mine.optimizer"]
    assert refusal(*stored, command="evaluate") == ""
    assert "loss._target_=mine.Loss" in refusal(*stored)
    # unless it lends itself to something else
    assert "model.x._target_=mine.Loss" in refusal(*stored, "+model.x=${loss}", command="evaluate")


def test_what_the_command_line_names_is_trusted() -> None:
    assert refusal("loss=nra", arguments=("loss._target_=mine.Loss",)) == ""
    assert refusal("+loss.x=1", arguments=("loss._target_=mine.Loss", "loss.x=2")) == ""
    # there, and nowhere else
    line = refusal("+sampler.x._target_=mine.Loss", arguments=("loss._target_=mine.Loss",))
    assert "sampler.x._target_=mine.Loss" in line
    assert " loss._target_" not in line


def test_a_configuration_of_ones_own_is_trusted_if_the_command_line_chooses_it(tmp_path: Path) -> None:
    (tmp_path / "loss").mkdir()
    (tmp_path / "loss" / "mine.yaml").write_text("_target_: mine.Loss\nmargin: 1\n")
    searched = f"hydra.searchpath=[file://{tmp_path}]"
    assert refusal("loss=nra", arguments=(searched, "loss=mine")) == ""
    assert "loss._target_=mine.Loss" in refusal("loss=mine", arguments=(searched,))


def test_trust_prints_what_is_trusted(capsys: pytest.CaptureFixture[str]) -> None:
    config = compose("train", overrides=["loss._target_=mine.Loss", "resume=some/run", "trust=true"])
    check_targets("train", config, ["resume=some/run", "trust=true"])
    assert "trusted  resume=some/run: loss._target_=mine.Loss" in capsys.readouterr().out


def test_a_run_of_ones_own_command_line_is_not_checked() -> None:
    config = compose("train", overrides=["loss._target_=mine.Loss"])
    check_targets("train", config, ["loss._target_=mine.Loss"])
