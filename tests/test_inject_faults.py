import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from faults import commands, fixtures, page, table
from faults.commands import EndedCommand, RunningCommand, run
from faults.damage import KINDS, Damage, flip_bit, flip_thousandth
from faults.files import TARGETS, damage_and_read
from faults.rows import FailedError, Fault, Result, Try, Verdict
from faults.rules import check_told, check_unchanged_or_told, digest_values
from faults.runner import Runner
from faults.store import Store
from forks import run_forked

pytestmark = pytest.mark.pipeline

TOLD = EndedCommand("python train.py", 2, "", "error: loss=rl: no such choice\n", 1.0, 10**8, (), False)
RULE = "a rule"


@pytest.fixture(scope="module")
def fixture_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The images and a finished run, without the other fixtures."""
    path = tmp_path_factory.mktemp("fixtures")
    fixtures.make_run(path)
    return path


def one_try(folder: Path, fixture_folder: Path) -> Try:
    return Try(0, folder, fixture_folder, np.random.default_rng(0))


@pytest.mark.parametrize("damage", [flip_bit, flip_thousandth, *KINDS.values()])
def test_damage_changes_a_file_as_the_seed_says(tmp_path: Path, damage: Damage) -> None:
    content = b"step,loss\n" + b"1,0.25\n" * 700
    left = []
    for name in ("one", "other"):
        (tmp_path / name).write_bytes(content)
        damage(tmp_path / name, np.random.default_rng(3))
        left.append((tmp_path / name).read_bytes())
    assert left[0] == left[1] != content


def test_one_bit_is_flipped(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(1000))
    flip_bit(path, np.random.default_rng(0))
    assert sum(byte.bit_count() for byte in path.read_bytes()) == 1
    flip_thousandth(path, np.random.default_rng(1))
    assert sum(byte.bit_count() for byte in path.read_bytes()) in (0, 2)


def test_one_line_and_the_exit_code_hold() -> None:
    assert check_told(TOLD) == "told"
    assert check_unchanged_or_told(TOLD, lambda: "another report") == "told"
    assert check_unchanged_or_told(replace(TOLD, code=0, err=""), lambda: "") == "unchanged"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"code": 1}, "exit code 1"),
        ({"err": ""}, "without a word"),
        ({"err": "error: a\nerror: b\n"}, "2 lines"),
        ({"err": "Killed\n"}, "begins otherwise"),
        ({"err": "error: image a.png: cannot be decoded (MemoryError)\n"}, "lack of memory"),
        ({"err": "Traceback (most recent call last):\n"}, "a trace"),
        ({"peak": 3 * 10**9}, "3.0 GB"),
        ({"orphans": ("7: python",)}, "outlive it: 7"),
        ({"is_late": True}, "still running"),
    ],
)
def test_what_does_not_hold(changes: dict[str, object], why: str) -> None:
    with pytest.raises(FailedError, match=why):
        check_told(replace(TOLD, **changes))  # type: ignore[arg-type]


def test_another_result_does_not_hold() -> None:
    with pytest.raises(FailedError, match="silently another report"):
        check_unchanged_or_told(replace(TOLD, code=0, err=""), lambda: "another report")


def test_a_partial_file_does_not_hold(tmp_path: Path) -> None:
    (tmp_path / ".metrics.json.7-ab.partial").touch()
    with pytest.raises(FailedError, match="left behind"):
        check_unchanged_or_told(replace(TOLD, code=0), lambda: "", tmp_path)


def test_digests_tell_types_and_bits_apart() -> None:
    values = [torch.zeros(2), torch.tensor([0.0, -0.0]), torch.zeros(2, dtype=torch.int32), {"a": 1}, {"a": 1.0}]
    assert len({digest_values(value) for value in values}) == 4  # zeros of 32 bits are the same bits
    assert digest_values({"a": [torch.ones(3)]}) == digest_values({"a": [torch.ones(3)]})


def test_a_command_is_measured(tmp_path: Path) -> None:
    ended = run("train.py", "loss=rl", folder=tmp_path)
    assert (ended.code, ended.orphans, ended.is_late) == (2, (), False)
    assert ended.err.startswith("error: loss=rl: no such choice")
    assert ended.command == "python train.py loss=rl"
    assert 0 <= ended.peak < 10**9
    ended = run("train.py", "loss=rl", folder=tmp_path, before=lambda: bytearray(b"1") * 10**9)
    assert 10**8 < ended.peak < 2 * 10**9


def test_a_command_may_allocate_beside_what_the_forked_process_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "DATA_LIMIT", 10**9)
    held = bytearray(10**9)  # allocated before the fork
    assert run("train.py", "loss=rl", folder=tmp_path, before=lambda: bytearray(5 * 10**8)).code == 2
    assert run("train.py", "loss=rl", folder=tmp_path, before=lambda: bytearray(2 * 10**9)).code == 1
    assert len(held) == 10**9


def test_a_process_that_outlives_its_command_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "GRACE_PERIOD", 0.1)
    ended = run("train.py", "loss=rl", folder=tmp_path, before=lambda: subprocess.Popen(["sleep", "100"]))
    assert len(ended.orphans) == 1
    assert ended.orphans[0].endswith("sleep 100")


def test_a_command_that_hangs_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "TIME_LIMIT", 0.3)
    ended = run("train.py", "loss=rl", folder=tmp_path, before=lambda: __import__("time").sleep(100))
    assert (ended.is_late, ended.code) == (True, 137)


def test_a_command_that_nobody_waits_for_is_killed(tmp_path: Path) -> None:
    running = RunningCommand("train.py", ["loss=rl"], tmp_path, before=lambda: __import__("time").sleep(100))
    commands.kill_all()
    assert running.wait().code == 137


def fault(attempt: Callable[[Try], str], name: str = "row") -> Fault:
    return Fault(name, "a fault", 3, RULE, "What is done.", attempt)


def draws(one: Try) -> str:
    return str(one.rng.integers(10**9))


def fails(one: Try) -> str:
    if one.number == 1:
        raise FailedError("a trace", TOLD)
    return "told"


def breaks(one: Try) -> str:
    raise KeyError(one.number)


def test_tries_are_counted(tmp_path: Path) -> None:
    result = Runner(tmp_path, tmp_path, seed=0, jobs=2).run(fault(fails), 3)
    assert (result.tries, result.held, result.ways) == (3, 2, {"told": 2})
    (failure,) = result.failures
    assert (failure.number, failure.how, failure.command) == (1, "a trace", "python train.py")
    assert not [*tmp_path.iterdir()]


def test_a_try_that_breaks_has_not_held(tmp_path: Path) -> None:
    result = Runner(tmp_path, tmp_path, seed=0, jobs=1).run(fault(breaks), 1)
    assert result.held == 0
    assert "KeyError" in result.failures[0].output


@pytest.mark.thorough
def test_the_seed_makes_every_choice(tmp_path: Path) -> None:
    def ways(seed: int, name: str) -> dict[str, int]:
        return Runner(tmp_path, tmp_path, seed, jobs=2).run(fault(draws, name), 4).ways

    assert ways(0, "row") == ways(0, "row")
    assert len(ways(0, "row") | ways(1, "row") | ways(0, "other")) == 12


def test_finished_rows_are_kept(tmp_path: Path) -> None:
    result = Result("row", 2, 1, {"told": 1}, [Verdict(1, False, "a trace", "python train.py", "out", 0.5)], 1.5)
    path = tmp_path / "new" / "faults.json"
    Store(path, resume=False).write(result)
    assert Store(path, resume=True).read("row") == result
    assert Store(path, resume=False).read("row") is None
    assert Store(path, resume=False).read_results(["other", "row"]) == [result]


def test_the_page_has_a_line_for_each_row() -> None:
    results = [Result(one.name, one.tries, one.tries, {}, [], 1.0) for one in table.FAULTS]
    text = page.render_page(table.FAULTS, results, seed=7, jobs=2, images=89)
    assert all(text.count(f"| `{one.name}` |") == 1 for one in table.FAULTS)
    assert ", seed 7: " in text
    assert "What did not hold" not in text
    results[0].add(Verdict(0, False, "a trace"))
    assert f"- `{results[0].name}`, 1 times: a trace" in page.render_page(
        table.FAULTS, results, seed=7, jobs=2, images=89
    )


def test_enough_tries_are_made() -> None:
    names = [one.name for one in table.FAULTS]
    assert len({*names}) == len(names)
    assert all(one.tries >= 200 for one in table.FAULTS if one.name.startswith("flips-"))
    assert next(one.tries for one in table.FAULTS if one.name == "points") >= 40


def test_the_rows_are_listed() -> None:
    done = run_forked("scripts/inject_faults.py", "--list")
    assert "flips-best" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    done = run_forked("scripts/inject_faults.py", "--rows", "flip")
    assert (done.returncode, done.stderr.startswith("--rows=flip: no such row")) == (1, True)


def other_weights(path: Path, rng: np.random.Generator) -> None:
    """A whole checkpoint, its checksums included, of another network."""
    content = torch.load(path, weights_only=True)
    weights = next(value for value in content["state_dict"].values() if value.is_floating_point())
    weights += 1e-6
    torch.save(content, path)


@pytest.mark.thorough
def test_other_weights_are_noticed(tmp_path: Path, fixture_folder: Path) -> None:
    with pytest.raises(FailedError, match=r"best.ckpt, evaluate, other weights: exit code 0, and silently other"):
        damage_and_read(one_try(tmp_path, fixture_folder), TARGETS["best.ckpt"], other_weights, 0)


@pytest.mark.thorough
def test_an_undamaged_run_is_unchanged(tmp_path: Path, fixture_folder: Path) -> None:
    for name, turn in (("best.ckpt", 0), ("metrics.json", 1)):
        one = one_try(tmp_path / name, fixture_folder)
        one.folder.mkdir()
        assert damage_and_read(one, TARGETS[name], lambda path, rng: None, turn) == "unchanged"


def test_a_checkpoint_that_was_cut_short_is_told(tmp_path: Path, fixture_folder: Path) -> None:
    assert damage_and_read(one_try(tmp_path, fixture_folder), TARGETS["best.ckpt"], KINDS["cut short"], 0) == "told"
