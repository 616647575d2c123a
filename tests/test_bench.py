"""The driver of the benchmarks, and the page that it writes."""

import json
from pathlib import Path

import bench
import pytest
from conftest import ROOT

from dml.runtime.errors import InputError

SCRIPT = "import sys\nprint('a line  1.0')\nprint(sys.argv[1:])\nsys.exit(len(sys.argv) > 2)\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with two benchmarks, and a page for what they print."""
    (tmp_path / "scripts").mkdir()
    for name in ("losses", "loading"):
        (tmp_path / "scripts" / f"bench_{name}.py").write_text(SCRIPT)
    (tmp_path / "page.md").write_text("# Page\n\n<!-- benchmarks -->\n<!-- /benchmarks -->\n\nEnd.\n")
    monkeypatch.setattr(bench, "ROOT", tmp_path)
    monkeypatch.setattr(bench, "RESULTS", tmp_path / "results.json")
    monkeypatch.setattr(bench, "PAGE", tmp_path / "page.md")
    return tmp_path


def test_the_page_has_what_was_measured() -> None:
    assert bench.format_page(bench.read_results()) in bench.PAGE.read_text(encoding="utf-8")


def test_every_benchmark_of_a_part_is_run() -> None:
    scripts = {path.stem.removeprefix("bench_") for path in (ROOT / "scripts").glob("bench_*.py")}
    assert {*bench.ARGUMENTS} <= {*bench.TITLES} == scripts - {"peers"}


def test_each_result_is_kept_until_its_benchmark_runs_again(project: Path) -> None:
    bench.run_benchmarks(["loading"])
    bench.run_benchmarks(["losses"])
    page, results = (project / "page.md").read_text(), json.loads((project / "results.json").read_text())
    assert [*results] == ["losses", "loading"]
    assert page.index("## Losses") < page.index("## Loading of photographs") < page.index("End.")
    assert page.count("```text\na line  1.0\n[]\n```") == 2
    assert page.count("All: ") == 1  # both were measured on this machine


def test_a_failed_benchmark_changes_nothing(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (project / "page.md").read_text()
    monkeypatch.setattr(bench, "ARGUMENTS", {"losses": ["1", "2"]})
    with pytest.raises(InputError, match=r"bench_losses\.py 1 2: exit code 1"):
        bench.run_benchmarks(["losses"])
    assert (project / "page.md").read_text() == before
    assert not (project / "results.json").exists()
