import shlex
from pathlib import Path

import pytest
from examples import examples
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hypothesis import given
from hypothesis import strategies as st

from dml.commands.arguments import PATHS as KEYS_OF_PATHS
from dml.commands.arguments import find_path, quote_paths, read_arguments, replace_latest
from dml.run.config_folders import CONF
from dml.runtime.errors import InputError
from dml.runtime.run_folder import RunFolder

PATH_KEYS = [*KEYS_OF_PATHS, "+dataset.reader.file"]


def parse(argument: str) -> Override:
    return OverridesParser.create().parse_override(argument)


def test_what_hydra_understands_or_no_quotes_would_mend_is_left_alone() -> None:
    understood = ["resume='a b'", 'resume="a [b]"', "hydra.run.dir=outputs/${now:%Y-%m-%d}", "training.init=null"]
    faulty = ["x.y=[1,2", "a b=1", "x={a:1", "loss.margin=0.1)", "x.name=my photos (2026]"]
    arguments = [*understood, "loss.margin=1,2", "-c=job", *faulty]
    assert quote_paths(arguments) == arguments


def test_quotes_are_taken_off() -> None:
    assert find_path(["resume='it\\'s [1]'"], "resume") == Path("it's [1]")
    assert find_path(["resume=a", "resume=b"], "resume") == Path("b")
    assert find_path(["resume=null", "training.init=a"], "resume") is None
    with pytest.raises(HydraException):
        find_path(["resume='a"], "resume")


TEXTS = st.text(st.characters(codec="utf-8"), min_size=1).filter(
    lambda text: text[0] not in "~'\"" and text != "null" and "${" not in text
)


@given(st.sampled_from(PATH_KEYS), TEXTS.map(lambda text: f"/{text}"))
@examples(40)
@pytest.mark.pipeline
def test_any_path_passes_the_shell_and_hydra(key: str, path: str) -> None:
    (argument,) = quote_paths(shlex.split(shlex.quote(f"{key}={path}")))
    assert parse(argument).value() == path
    assert find_path([argument], key) == Path(path)


@given(st.sampled_from(["dataset.root", "resume"]), st.lists(TEXTS.filter(lambda text: "," not in text), min_size=2))
@examples(40)
def test_a_sweep_over_paths_has_a_value_for_each(key: str, texts: list[str]) -> None:
    paths = [f"/{text.strip()}" for text in texts]
    _, argument = quote_paths(["-m", f"{key}={','.join(paths)}"])
    assert [parse(f"key={value}").value() for value in parse(argument).sweep_string_iterator()] == paths


def test_latest_is_the_newest_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="resume=latest: no run below outputs"):
        replace_latest("resume=latest")
    run = RunFolder("outputs/sop/rll/now")
    run.write_configuration("seed: 1\n", "{}\n", "[]\n")
    run.last_checkpoint.parent.mkdir()
    assert replace_latest("resume=latest") == "resume=outputs/sop/rll/now"
    assert replace_latest("loss=latest") == "loss=latest"
    assert replace_latest("checkpoint=latest") == f"checkpoint={run.last_checkpoint}"
    run.best_checkpoint.touch()
    assert replace_latest("training.init=latest") == f"training.init={run.best_checkpoint}"


def test_a_path_reaches_the_configuration() -> None:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        composed = compose("train", overrides=quote_paths(["dataset.root=/my 's [1]/#a=b", "data.cache=1e3"]))
    assert (composed.dataset.root, composed.data.cache) == ("/my 's [1]/#a=b", "1e3")


def test_a_sweep_over_paths_stays_one() -> None:
    sweep = ["-m", "training.init=a.ckpt,b.ckpt", "dataset.root=glob(*)", "resume=choice(a, 'b c')"]
    assert quote_paths(sweep) == sweep
    assert quote_paths(["-m", "dataset.root=~/images", "training.init=/a (1)", "seed=1,2"]) == [
        *("-m", "dataset.root='~/images'", "training.init='/a (1)'", "seed=1,2"),
    ]
    assert quote_paths(["-m", "hydra.sweep.dir=a,b"]) == ["-m", "hydra.sweep.dir='a,b'"]  # no sweep has two


def test_what_hydra_cannot_read_is_a_text() -> None:
    (quoted,) = quote_paths(["dataset.name=Größe"])
    assert parse(quoted).value() == "Größe"
    lists = ["hydra.searchpath=[/photos,'a, b']", "model.heads=[L,H]"]
    assert quote_paths(lists) == lists


def test_the_home_folder_is_filled_in_where_it_is_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert quote_paths(["resume=~/run", "hydra.run.dir=~/a b", "dataset.root=~/images"]) == [
        "resume=/home/me/run",
        "hydra.run.dir='/home/me/a b'",
        "dataset.root='~/images'",
    ]
    assert find_path(['checkpoint="~/best.ckpt"'], "checkpoint") == Path("/home/me/best.ckpt")


def test_options_may_stand_anywhere() -> None:
    assert read_arguments(["loss=rll", "-m", "--config-dir", "mine", "~data.cache", "seed=1,2"]) == [
        *("-m", "--config-dir", "mine"),
        *("loss=rll", "~data.cache", "seed=1,2"),
    ]
