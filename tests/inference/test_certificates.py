"""The certificate of an index: recall by loops over all vectors, intervals of scipy, and what makes it stale."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import beta

import dml
from dml.__main__ import dispatch
from dml.inference.certificates import describe
from dml.report.statistics import clopper_pearson
from dml.runtime.errors import InputError

COUNT, SIZE = 600, 16


def draw_vectors(count: int = COUNT, seed: int = 0) -> Any:
    drawn = np.random.default_rng(seed)
    rows = drawn.normal(size=(20, SIZE))[drawn.integers(0, 20, count)] + 2 * drawn.normal(size=(count, SIZE))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def build(factory: str, vectors: Any = None, **options: Any) -> dml.Index:
    vectors = draw_vectors() if vectors is None else vectors
    paths = [f"/photos/{number}.png" for number in range(len(vectors))]
    return dml.Index.build(vectors=vectors, paths=paths, factory=factory, **options)


def loop_recall(index: dml.Index, vectors: Any, queries: Any, own: Any, k: int) -> list[float]:
    """The share of the k nearest of each query, found one query at a time; of the k-th score any counts."""
    shares = []
    for query, itself in zip(queries, own, strict=True):
        scores = vectors.astype(np.float64) @ query.astype(np.float64)
        scores[itself] = -np.inf
        least = np.sort(scores)[-k]
        found = index.vectors.search(query[None], k + (itself != []))[1][0]
        left = [number for number in found.tolist() if number >= 0 and number not in np.atleast_1d(itself)][:k]
        shares.append(sum(scores[number] >= least - 1e-12 for number in left) / k)
    return shares


def test_the_interval_is_that_of_the_binomial_distribution() -> None:
    for successes, trials in [(0, 7), (7, 7), (990, 1000), (1000, 1000), (3, 9)]:
        low, high = clopper_pearson(successes, trials)
        assert low == pytest.approx(beta.ppf(0.025, successes, trials - successes + 1) if successes else 0, abs=1e-12)
        high_end = beta.ppf(0.975, successes + 1, trials - successes) if successes < trials else 1
        assert high == pytest.approx(high_end, abs=1e-12)


@pytest.mark.parametrize("factory", ["Flat", "IVF16,Flat", "HNSW4", "IVF16,RaBitQ2,RFlat"])
@pytest.mark.parametrize("k", [1, 5])
def test_the_recall_is_that_of_a_loop(factory: str, k: int) -> None:
    vectors = draw_vectors()
    vectors[300:330] = vectors[:30]  # of copies, any are found
    index = build(factory, vectors)
    found = index.check(50, k, seed=3)
    rows = np.random.default_rng(3).permutation(COUNT)[:50]
    shares = loop_recall(index, vectors, vectors[rows], [[row] for row in rows], k)
    assert found["recall"] == pytest.approx(np.mean(shares), abs=1e-9)
    assert (found["low"], found["high"]) == pytest.approx(clopper_pearson(sum(shares), 50), abs=1e-9)
    assert found["queries"] == 50
    assert (found["recall"] == 1) == (factory == "Flat")
    queries = draw_vectors(40, seed=9)
    given = index.check(queries, k)["recall"]
    assert given == pytest.approx(np.mean(loop_recall(index, vectors, queries, [[]] * 40, k)), abs=1e-9)
    assert index.check(50, k, seed=3) == found


def test_labels_are_listed_the_worst_first() -> None:
    vectors = draw_vectors()
    labels = [f"class {number % 13}" if number % 4 else "" for number in range(COUNT)]
    index = build("IVF16,Flat", vectors, labels=labels)
    index.check(COUNT, 5)
    assert index.certificate is not None
    rows = np.random.default_rng(0).permutation(COUNT)
    shares = dict(
        zip(rows.tolist(), loop_recall(index, vectors, vectors[rows], rows[:, None].tolist(), 5), strict=True)
    )
    expected = {
        label: np.mean([shares[row] for row in range(COUNT) if labels[row] == label]) for label in {*labels} - {""}
    }
    listed = {label: recall for label, recall, *_ in index.certificate["labels"]}
    assert [*listed.values()] == pytest.approx(sorted(expected.values())[:10])
    assert listed == pytest.approx({label: expected[label] for label in listed})


@pytest.mark.parametrize(
    ("factory", "names"),
    [("IVF16,Flat", ["nprobe"]), ("HNSW4", ["efSearch"]), ("IVF16,RaBitQ2,RFlat", ["k_factor_rf", "nprobe"])],
)
def test_the_chosen_parameters_reach_the_recall_and_are_kept(factory: str, names: list[str], tmp_path: Path) -> None:
    index = build(factory)
    found = index.check(250, 5, recall=0.85)
    parts = [part.partition("=")[::2] for part in index.vectors.parameters.split(",")]
    assert [name for name, _ in parts] == names
    assert all(int(value).bit_count() == 1 for _, value in parts)
    assert found["queries"] == 250
    opened = dml.Index.load(index.save(tmp_path / "index"))
    assert opened.vectors.parameters == index.vectors.parameters
    assert opened.check(250, 5) == found
    assert found["low"] > 0.8  # it was chosen by other queries, which found 0.85 or more


def test_a_recall_that_is_not_reached_leaves_the_parameters() -> None:
    index = build("IVF16,RaBitQ", parameters="nprobe=2")
    before = index.check(100, vectors=draw_vectors())
    with pytest.raises(InputError, match=r"^recall=0.999: 100 queries found 0\.\d+ at most, or are too few to tell"):
        index.check(100, recall=0.999, vectors=draw_vectors())
    assert index.vectors.parameters == "nprobe=2"
    assert index.check(100, vectors=draw_vectors()) == before


def test_a_certificate_is_kept_and_gets_stale(tmp_path: Path) -> None:
    index = build("Flat")
    assert dml.Index.load(index.save(tmp_path / "index")).certificate is None
    index.check(100)
    opened = dml.Index.load(index.save(tmp_path / "index"))
    assert opened.certificate == json.loads(json.dumps(index.certificate))
    assert opened.certificate is not None
    line = "recall@10 1.000 (0.964 to 1.000) by 100 queries"
    assert describe(opened.certificate, opened.state) == line
    opened.remove("/photos/3.png")
    assert describe(opened.certificate, opened.state) == f"{line}; stale: the index changed since"
    opened.check(100)
    assert describe(opened.certificate, opened.state) == line


@pytest.mark.parametrize(
    ("factory", "decoded"),
    [("Flat", False), ("SQ8", True), ("PCA8,Flat", True), ("HNSW4", False), ("SQ4,RFlat", False)],
)
def test_codes_are_told_apart_from_vectors(factory: str, decoded: bool) -> None:
    index = build(factory)
    index.check(50)
    assert index.certificate is not None
    assert index.certificate["decoded"] == decoded
    assert ("among the vectors that its codes stand for" in describe(index.certificate, index.state)) == decoded
    if not decoded:
        np.testing.assert_allclose(index.vectors.reconstruct(index.items.ids), draw_vectors(), atol=1e-6)
    index.check(50, vectors=draw_vectors())
    assert not index.certificate["decoded"]


def test_what_cannot_be_measured_is_one_line() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"queries": 0}, "queries=0, k=10"),
        ({"k": COUNT}, "queries=600, k=600"),
        ({"recall": 1}, "recall=1"),
        ({"vectors": np.ones((3, SIZE))}, r"vectors: of shape \(3, 16\), expected \(600, 16\)"),
        ({"queries": np.ones((3, 4), np.float32)}, r"vectors of shape \(3, 4\)"),
    ]
    for options, line in cases:
        with pytest.raises(InputError, match=line):
            build("Flat").check(**options)


@pytest.mark.pipeline
def test_the_command_prints_and_keeps_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = build("IVF16,Flat", labels=[f"class{number % 2}" for number in range(COUNT)]).save(tmp_path / "index")
    assert "- Checked: never" in (path / "README.md").read_text()
    before = {entry.name: entry.stat().st_mtime_ns for entry in path.glob("*-*")}
    dispatch(["index", str(path), "--check", "200", "--recall", "0.9"])
    lines = capsys.readouterr().out.splitlines()
    opened = dml.Index.load(path)
    assert opened.certificate is not None
    checked = describe(opened.certificate, opened.state)
    assert lines[0] == f"{path}, {opened.vectors.parameters}: {checked}"
    card = f"- Kind: `IVF16,Flat` {opened.vectors.parameters}\n- Checked: {checked}\n"
    assert (path / "README.md").read_text().endswith(card)
    assert [line.rpartition(" of ")[2] for line in lines[1:]] == [row[0] for row in opened.certificate["labels"]]
    assert {entry.name: entry.stat().st_mtime_ns for entry in path.glob("*-*")} == before
