"""Lists of pairs: LFW's pairs.txt and CSV files."""

from pathlib import Path

import pytest

from dml.data.pair_lists import read_pairs
from dml.runtime.errors import InputError


def write(folder: Path, name: str, *lines: str) -> Path:
    (folder / name).write_text("\n".join(lines) + "\n")
    return folder / name


def spell(path: Path) -> list[tuple[str, str, bool, int]]:
    pairs = read_pairs(path)
    names = [Path(name).relative_to(path.parent).as_posix() for name in pairs.images.paths.tolist()]
    assert names == sorted({*names})
    rows = zip(*pairs.rows.tolist(), pairs.is_same.tolist(), pairs.folds.tolist(), strict=True)
    return [(names[first], names[second], same, fold) for first, second, same, fold in rows]


def test_the_sets_of_pairs_txt_are_folds(tmp_path: Path) -> None:
    file = write(tmp_path, "pairs.txt", "2\t1", "Ann\t1\t4", "Ann\t4\tBob\t12", "Bob\t2\t12", "Bob\t2\tAnn\t1")
    assert spell(file) == [
        ("Ann/Ann_0001.jpg", "Ann/Ann_0004.jpg", True, 0),
        ("Ann/Ann_0004.jpg", "Bob/Bob_0012.jpg", False, 0),
        ("Bob/Bob_0002.jpg", "Bob/Bob_0012.jpg", True, 1),
        ("Bob/Bob_0002.jpg", "Ann/Ann_0001.jpg", False, 1),
    ]
    assert len(read_pairs(file).images) == 4
    (tmp_path / "lfw").mkdir()
    assert spell(file)[0][0] == "lfw/Ann/Ann_0001.jpg"


def test_a_single_set_is_divided_into_ten(tmp_path: Path) -> None:
    lines = [f"Ann {i} {i + 1}" for i in range(6)] + [f"Ann {i} Bob {i}" for i in range(6)]
    assert [fold for *_, fold in spell(write(tmp_path, "pairsDevTest.txt", "6", *lines))] == [*range(10), 0, 1]


def test_a_csv_file_says_yes_or_no(tmp_path: Path) -> None:
    file = write(tmp_path, "pairs.csv", "path_1,same,path_2,note", "a.png,yes,b/c.png,x", "a.png,0,d.png,")
    assert spell(file) == [("a.png", "b/c.png", True, 0), ("a.png", "d.png", False, 1)]


@pytest.mark.parametrize(
    ("name", "lines", "fault"),
    [
        ("p.txt", ["1 1", "Ann 1 2"], "1 pairs below the first line '1 1', expected 2 x SETS x N"),
        ("p.txt", [""], "0 pairs below the first line '', expected"),
        ("p.txt", ["1 1 1", "Ann 1 2", "Ann 1 Bob 2"], "2 pairs below the first line '1 1 1', expected"),
        ("p.txt", ["1", "Ann 1", "Ann 1 Bob 2"], "line 2: 'Ann 1', expected 3 columns"),
        ("p.txt", ["one", "Ann 1 2", "Ann 1 Bob 2"], "line 1: number of pairs 'one', expected a whole number"),
        (
            "p.txt",
            ["1", "Ann 1 2", "Ann 1 Bob 2 3"],
            "line 3: 'Bob 2 3' at its end, expected a number, or a name and a number",
        ),
        ("p.txt", ["1", "Ann 1 2", "Bob 1 2"], "2 pairs, expected some of one class and some of two"),
        ("p.csv", ["path_1,path_2", "a,b"], "line 1: no column 'same'; pairs have the columns path_1, path_2, same"),
        (
            "p.csv",
            ["path_1,path_2,same", "a,b,maybe"],
            r"line 2: \['a', 'b', 'maybe'\], expected two paths, and yes or",
        ),
        ("p.csv", ["path_1,path_2,same", "a,,yes"], "line 2: .*expected two paths"),
        ("p.csv", ["path_1,path_2,same"], "0 pairs, expected some of one class and some of two"),
    ],
)
def test_a_fault_is_named(tmp_path: Path, name: str, lines: list[str], fault: str) -> None:
    with pytest.raises(InputError, match=fault):
        read_pairs(write(tmp_path, name, *lines))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^evaluation\.pairs=.*none\.txt: no such file"):
        read_pairs(tmp_path / "none.txt")
