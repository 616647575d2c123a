from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException

from dml.commands.arguments import find_path, put_options_first, quote_paths
from dml.ops.errors import InputError
from dml.run.config_folders import CONF

PATHS = [
    "/a/plain_one.zip",
    "a b/c",
    "run [1]",
    "a,b",
    "it's",
    'a "b" c',
    "{a: b}",
    "lr=0.1",
    "(x)",
    "ends with \\",
    "a\\'b",
    "1e3",
    "true",
    "#1",
    "a$b&*",
    "été",
]


@pytest.mark.parametrize("path", PATHS)
def test_a_path_means_what_it_says(path: str) -> None:
    arguments = quote_paths([f"{key}={path}" for key in ("resume", "dataset.root", "init", "data.cache")])
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("train", overrides=arguments)
    assert [config.resume, config.dataset.root, config.init, config.data.cache] == [path] * 4
    assert find_path(arguments, "resume") == Path(path)


@pytest.mark.parametrize(
    "argument",
    [
        "resume='a b'",
        'resume="a [b]"',
        "hydra.run.dir=outputs/${now:%Y-%m-%d}",
        "init=null",
        "loss.margin=1,2",
        "-c=job",
    ],
)
def test_what_hydra_understands_is_left_alone(argument: str) -> None:
    assert quote_paths([argument]) == [argument]


def test_quotes_are_taken_off() -> None:
    assert find_path(["resume='it\\'s [1]'"], "resume") == Path("it's [1]")
    assert find_path(["resume=a", "resume=b"], "resume") == Path("b")
    assert find_path(["resume=null", "init=a"], "resume") is None
    with pytest.raises(HydraException):
        find_path(["resume='a"], "resume")


def test_a_sweep_over_paths_stays_one() -> None:
    sweep = ["-m", "init=a.ckpt,b.ckpt", "dataset.root=glob(*)"]
    assert quote_paths(sweep) == sweep
    assert quote_paths(["-m", "dataset.root=~/images", "seed=1,2"]) == ["-m", "dataset.root='~/images'", "seed=1,2"]


def test_the_home_folder_is_filled_in_where_it_is_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert quote_paths(["resume=~/run", "hydra.run.dir=~/a b", "dataset.root=~/images"]) == [
        "resume='/home/me/run'",
        "hydra.run.dir='/home/me/a b'",
        "dataset.root='~/images'",
    ]
    assert find_path(['checkpoint="~/best.ckpt"'], "checkpoint") == Path("/home/me/best.ckpt")


def test_options_may_stand_anywhere_and_two_dashes_nowhere() -> None:
    assert put_options_first(["loss=rll", "-m", "--config-dir", "mine", "~callbacks.progress", "seed=1,2"]) == [
        *("-m", "--config-dir", "mine"),
        *("loss=rll", "~callbacks.progress", "seed=1,2"),
    ]
    with pytest.raises(InputError, match="--: no such option; values are given as"):
        put_options_first(["--", "loss=rll"])
