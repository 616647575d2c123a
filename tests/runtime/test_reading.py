import os
import time
from pathlib import Path

import pytest
import torch
import yaml
from conftest import ROOT

from dml.runtime import reading
from dml.runtime.reading import check_plain, check_zip, parse_json, parse_yaml, read_bounded


def test_files_are_read_as_by_python() -> None:
    files = sorted({*(ROOT / "conf").rglob("*.yaml"), *(ROOT / "dml").rglob("*.yaml")})
    assert len(files) > 200
    for file in files[::10]:
        text = file.read_text(encoding="utf-8")
        assert parse_yaml(text, with_aliases=True) == yaml.safe_load(text), file


def test_no_yaml_and_no_code() -> None:
    for text in ("a: [", "a: b: c", "!!python/object/apply:os.getcwd []"):
        with pytest.raises(yaml.YAMLError):
            parse_yaml(text)


@pytest.mark.parametrize("nested", ["[", "- ", "? ", "{a: "])
def test_lists_within_lists_end_no_process(nested: str) -> None:
    for depth in (101, 60_000):
        with pytest.raises(ValueError, match="more than 100 lists and mappings within each other"):
            parse_yaml(nested * depth)


def test_nested_lists() -> None:
    deepest = "[" * 100 + "]" * 100
    assert parse_json(deepest) == parse_yaml(deepest) == yaml.safe_load(deepest)
    for text in ("[" * 101 + "]" * 101, "[" * 200_000, '{"a":' * 200_000):
        with pytest.raises(ValueError, match=r"more than 100 lists and mappings|char"):
            parse_json(text)


def test_a_date_that_does_not_exist() -> None:
    with pytest.raises(ValueError, match="month"):
        parse_yaml("a: 2000-13-01")


def test_values_are_counted_wherever_they_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST", 21)
    row = [1, 2, 3]
    assert check_plain([row] * 5)  # a list of five lists of three values: 1 + 5 + 15
    with pytest.raises(ValueError, match="more than 21 values"):
        check_plain([[row] * 5])


PAIRS = ("ab", "bc", "cd", "de", "ef", "fg", "gh", "hi")
MERGED = "a: &a {x: 1}\n" + "".join(f"{new}: &{new} {{<<: [*{old}, *{old}]}}\n" for old, new in PAIRS)
LAUGHS = "a: &a [1, 1]\n" + "".join(f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in PAIRS)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("&a {b: [*a]}", "an alias or a merge key"),
        (MERGED, "an alias or a merge key"),
        (LAUGHS, "an alias or a merge key"),
        ("<<: {a: 1}", "an alias or a merge key"),
        ("a: 1\n" * 12_000_000, "more than 262,144 characters"),
        ("a: " + "1:" * 100_000 + "1", "a number of more than 1,000 characters"),
    ],
    ids=["itself", "merged", "laughs", "merge key", "60 MB", "number"],
)
def test_a_yaml_text_that_takes_long_is_refused_at_once(text: str, line: str) -> None:
    started = time.process_time()
    with pytest.raises(ValueError, match=line):
        parse_yaml(text)
    assert time.process_time() - started < 1


def test_a_json_text_that_takes_much_memory_is_refused_before_it_is_parsed() -> None:
    started = time.process_time()
    with pytest.raises(ValueError, match="more than 500,000 values"):
        parse_json(b"[" + b"[]," * 20_000_000 + b"[]]")
    assert time.process_time() - started < 1


def test_files_have_a_largest_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_BYTES", 4)
    (tmp_path / "a").write_bytes(b"1234")
    assert read_bounded(tmp_path / "a") == b"1234"
    (tmp_path / "a").write_bytes(b"12345")
    with pytest.raises(ValueError, match="5 bytes, at most 4 are read"):
        read_bounded(tmp_path / "a")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.yaml")
    for path, kind in ((tmp_path / "config.yaml", "a named pipe"), (tmp_path, "a folder")):
        with pytest.raises(ValueError, match=f"{kind}, not a regular file"):
            read_bounded(path)


def test_an_archive_that_was_written_without_checksums_is_read(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    request.addfinalizer(lambda: torch.serialization.set_crc32_options(True))
    torch.serialization.set_crc32_options(False)
    torch.save({"weight": torch.ones(3)}, tmp_path / "weights.pt")
    check_zip(tmp_path / "weights.pt")
