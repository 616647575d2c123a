"""The findings of an audit on embeddings that are made up: copies, class probabilities, mixed and divided classes."""

import csv
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.nn.functional as F

from dml.data.table import ImageTable
from dml.data.table_changes.corrections import read_corrections
from dml.evaluation.audit.class_relations import report_divided_classes, report_mixed_classes, report_small_classes
from dml.evaluation.audit.data_audit import find_neighbors
from dml.evaluation.audit.doubtful_labels import iterate_probabilities
from dml.evaluation.audit.findings import SMALL_CLASS, AuditedImages, Finding
from dml.evaluation.audit.findings_file import read_decided_rows, write_findings
from dml.evaluation.audit.near_duplicates import find_duplicate_pairs, report_duplicates
from dml.evaluation.audit.odd_images import report_odd_images
from dml.evaluation.audit.settings import AuditSettings

SETTINGS = AuditSettings()


def make_images(labels: npt.NDArray[np.int64], groups: npt.NDArray[np.int64], split: list[str]) -> AuditedImages:
    """Images of labels, whose embeddings lie around the centres of groups; all hashes are drawn at random."""
    rng = torch.Generator().manual_seed(0)
    centres = torch.randn(int(groups.max()) + 1, 16, generator=rng)
    rows = centres[torch.from_numpy(groups)] + 0.4 * torch.randn(len(labels), 16, generator=rng)
    return AuditedImages(
        table=ImageTable(
            paths=np.array([f"/mine/{row}.jpg" for row in range(len(labels))]),
            labels=labels[:, None],
            split=np.array(split),
            levels=("class",),
        ),
        embeddings=F.normalize(rows, dim=1),
        hashes=torch.randint(0, 2, (len(labels), 256), generator=rng).float(),
        contrasts=np.full(len(labels), 50, dtype=np.float32),
        sizes=np.full((len(labels), 2), 64, dtype=np.int64),
    )


def make_classes(count: int = 6, size: int = 12) -> npt.NDArray[np.int64]:
    return np.repeat(np.arange(count), size)


def test_of_copies_all_but_one_are_proposed_and_the_test_keeps_its_image() -> None:
    labels = make_classes()
    images = make_images(labels, labels, ["train"] * 36 + ["test"] * 36)
    for copy in (1, 40, 70):
        images.embeddings[copy] = images.embeddings[0]
        images.hashes[copy] = images.hashes[0]
        images.hashes[copy, :5] = 1 - images.hashes[0, :5]
    images.hashes[20] = images.hashes[21]  # equal hashes alone, of images that are nothing alike
    images.embeddings[20] = -images.embeddings[21]
    findings = report_duplicates(images, find_duplicate_pairs(images, SETTINGS))
    assert {finding.path for finding in findings} == {f"/mine/{row}.jpg" for row in (0, 1, 70)}
    across = [finding for finding in findings if finding.path in ("/mine/0.jpg", "/mine/1.jpg")]
    assert any("the test flatters the training" in finding.remark for finding in across)


def test_all_of_many_copies_are_known_to_each() -> None:
    labels = make_classes()
    images = make_images(labels, labels, ["train"] * 72)
    copies = [*range(0, 72, 3)]
    images.embeddings[copies], images.hashes[copies] = images.embeddings[0].clone(), images.hashes[0].clone()
    listed = find_duplicate_pairs(images, SETTINGS).list_copies(images, SETTINGS)
    for row in range(72):
        assert sorted(listed[row]) == ([copy for copy in copies if copy != row] if row in copies else [])


def test_class_probabilities_are_those_of_a_loop() -> None:
    labels = np.array([0, 0, 0, 0, 1, 1, 2, 2, 2, 2, 2])
    images = make_images(labels, labels, ["train"] * len(labels))
    copies: list[list[int]] = [[] for _ in labels]
    copies[0], copies[4] = [1], [5]
    rows, classes = np.arange(len(labels)), np.array([0, 1, 2])
    found = np.concatenate([part for _, part in iterate_probabilities(images, rows, classes, copies, SETTINGS)])
    embeddings = images.embeddings.double().numpy()
    for row in rows:
        means = []
        for label in classes:
            others = [i for i in rows if labels[i] == label and i != row and i not in copies[row]]
            nearest = sorted((float(embeddings[row] @ embeddings[i]) for i in others), reverse=True)[:3]
            means.append(np.mean(nearest) if nearest else -1.0)
        expected = np.exp(np.array(means) / 0.07)
        np.testing.assert_allclose(found[row], expected / expected.sum(), rtol=1e-4, atol=1e-12)


def test_a_class_under_two_names_is_found_and_no_other_pair() -> None:
    groups = make_classes()
    labels = groups.copy()
    labels[6:12] = 6
    images = make_images(labels, groups, ["train"] * len(labels))
    findings = report_mixed_classes(images, find_neighbors(images, SETTINGS)[0], SETTINGS)
    assert [{finding.label, finding.other_label} for finding in findings] == [{"0", "6"}]


def test_two_classes_under_one_name_are_found_and_no_other() -> None:
    groups = make_classes()
    labels = np.where(groups == 5, 4, groups)
    images = make_images(labels, groups, ["train"] * len(labels))
    findings = report_divided_classes(images, AuditSettings(divided=0.5))
    assert [finding.label for finding in findings] == ["4"]
    first, second = ({*rows} for rows in findings[0].pictures)
    assert {frozenset(first), frozenset(second)} == {frozenset(range(48, 56)), frozenset(range(60, 68))}


def test_small_classes_and_odd_images() -> None:
    labels = np.append(make_classes(), [6, 6, 7])
    images = make_images(labels, labels, ["train"] * len(labels))
    assert [(finding.label, finding.score) for finding in report_small_classes(images, SETTINGS)] == [
        ("7", 1 - 1 / 3),
        ("6", 1 - 2 / 3),
    ]
    sizes = dict.fromkeys(range(7), 12) | {7: 1}  # of the data set, of which these images are a part
    assert [(f.label, f.remark) for f in report_small_classes(images, SETTINGS, sizes)] == [
        ("7", "1 image: no query of it finds a positive")
    ]
    images.contrasts[3] = 1
    images.sizes[4] = (64, 10)
    similarities = find_neighbors(images, AuditSettings(isolation=1e9))[1]
    odd = {f.path: f.remark for f in report_odd_images(images, similarities, AuditSettings(isolation=1e9))}
    assert odd == {
        "/mine/3.jpg": "of one colour",
        "/mine/4.jpg": "only 64 x 10 pixels; 6.4 times as long as wide",
    }


def test_a_later_audit_keeps_what_the_user_has_filled_in(tmp_path: Path) -> None:
    file = tmp_path / "audit.csv"
    findings = [Finding(SMALL_CLASS, 0.5, "2 images", label=label) for label in "abcd"]
    write_findings(file, findings, {})
    with file.open(newline="") as lines:
        rows = [row | {"note": ""} for row in csv.DictReader(lines)]
    filled = {"a": {"note": "asked Ann"}, "b": {"action": "keep"}, "c": {"new_label": "new"}}
    with file.open("w", newline="") as lines:
        writer = csv.DictWriter(lines, rows[0])
        writer.writeheader()
        writer.writerows(row | filled.get(row["label"], {}) for row in rows)
    decided = read_decided_rows(file)
    assert decided == [row | filled[row["label"]] for row in rows[:3]]
    write_findings(file, findings, {}, decided)
    assert read_decided_rows(file) == decided
    assert [line.split(",")[4] for line in file.read_text().splitlines()] == ["label", "a", "b", "c", "d"]


@pytest.mark.parametrize("name", ["a\rb", "a\nb", "a\r\nb", "a,b"])
def test_line_ends_in_names_are_read_as_they_were_written(name: str, tmp_path: Path) -> None:
    file = tmp_path / "audit.csv"
    write_findings(file, [Finding(SMALL_CLASS, 0.5, "1 image", path=f"/mine/{name}.jpg", label=name)], {})
    assert [(correction.path, correction.label) for correction in read_corrections(file)] == [
        (f"/mine/{name}.jpg", name)
    ]
