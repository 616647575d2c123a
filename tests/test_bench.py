"""The driver of the benchmarks, and the page that it writes."""

import json
from pathlib import Path

import bench
import machine
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
    assert {*bench.TITLES} == scripts - {"peers"}
    assert {*bench.ARGUMENTS} <= {*bench.TITLES}


def test_each_result_is_kept_until_its_benchmark_runs_again(project: Path) -> None:
    bench.run_benchmarks(["loading"])
    bench.run_benchmarks(["losses"])
    page, results = (project / "page.md").read_text(), json.loads((project / "results.json").read_text())
    assert [*results] == ["losses", "loading"]
    assert page.index("## Losses") < page.index("## Loading of photographs") < page.index("End.")
    assert page.count("```text\na line  1.0\n[]\n```") == 2
    assert page.count("All: ") == 1  # both were measured on this machine
    results["losses"]["output"] = ["another line"]
    (project / "results.json").write_text(json.dumps(results))
    bench.write_page(bench.read_results())
    assert "another line" in (project / "page.md").read_text()


def test_a_failed_benchmark_changes_nothing(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (project / "page.md").read_text()
    monkeypatch.setattr(bench, "ARGUMENTS", {"losses": ["1", "2"]})
    with pytest.raises(InputError, match=r"bench_losses\.py 1 2: exit code 1"):
        bench.run_benchmarks(["losses"])
    assert (project / "page.md").read_text() == before
    assert not (project / "results.json").exists()


def test_own_processes_are_no_other_work(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, busy, own = iter([0.0, 10.0]), iter([100.0, 118.0]), iter([1.0, 11.0])
    monkeypatch.setattr(machine, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(machine, "_read_busy_seconds", lambda: next(busy))
    monkeypatch.setattr(machine, "_read_own_seconds", lambda: next(own))
    with machine.OtherWork() as other:
        pass
    assert other.cores == pytest.approx(0.8)  # of 18 busy seconds in 10, 10 are the work's own
