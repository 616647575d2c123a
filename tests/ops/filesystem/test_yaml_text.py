import pytest
import yaml
from conftest import ROOT

from dml.ops.filesystem.yaml_text import parse_yaml


def test_files_are_read_as_by_python() -> None:
    files = sorted({*(ROOT / "conf").rglob("*.yaml"), *(ROOT / "dml").rglob("*.yaml")})
    assert len(files) > 200
    for file in files[::10]:
        text = file.read_text(encoding="utf-8")
        assert parse_yaml(text) == yaml.safe_load(text), file


@pytest.mark.parametrize("text", ["a: [", "a: b: c", "\t- a", "!!python/object/apply:os.getcwd []"])
def test_no_yaml_and_no_code(text: str) -> None:
    with pytest.raises(yaml.YAMLError):
        parse_yaml(text)


@pytest.mark.parametrize("nested", ["[", "- ", "? ", "{a: "])
@pytest.mark.parametrize("depth", [101, 100_000])
def test_lists_within_lists_end_no_process(nested: str, depth: int) -> None:
    with pytest.raises(yaml.YAMLError, match="more than 100 lists and mappings within each other"):
        parse_yaml(nested * depth)


def test_nested_lists() -> None:
    assert parse_yaml("[" * 100 + "1" + "]" * 100) == yaml.safe_load("[" * 100 + "1" + "]" * 100)


def test_a_date_that_does_not_exist() -> None:
    with pytest.raises(ValueError, match="month must be in"):
        parse_yaml("a: 2000-13-01")
