"""The findings of an audit on embeddings that are made up: copies, class probabilities, mixed and divided classes."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.nn.functional as F

from dml.data.layout import iterate_rows
from dml.data.table import ImageTable
from dml.evaluation.audit.findings import (
    SMALL_CLASS,
    AuditedImages,
    AuditSettings,
    Finding,
    read_decided_rows,
    write_findings,
)
from dml.evaluation.audit.inspection import find_neighbors, report_odd_images
from dml.evaluation.audit.labels import (
    estimate_label_probabilities,
    iterate_probabilities,
    report_divided_classes,
    report_mixed_classes,
    report_small_classes,
)
from dml.evaluation.audit.near_duplicates import find_duplicate_pairs, report_duplicates

SETTINGS = AuditSettings()


def draw_pictures(count: int, side: int = 32) -> torch.Tensor:
    """Draw smooth pictures (N, side, side) of gray values from 0 to 255, the same for each side."""
    coarse = 255 * torch.rand(count, 1, 12, 12, generator=torch.Generator().manual_seed(1))
    return F.interpolate(coarse, (side, side), mode="bicubic").clamp(0, 255)[:, 0]


def make_images(labels: npt.NDArray[np.int64], groups: npt.NDArray[np.int64], split: list[str]) -> AuditedImages:
    """Images of labels, whose embeddings lie around the centers of groups; all pictures are drawn at random."""
    rng = torch.Generator().manual_seed(0)
    centers = torch.randn(int(groups.max()) + 1, 16, generator=rng)
    rows = centers[torch.from_numpy(groups)] + 0.4 * torch.randn(len(labels), 16, generator=rng)
    return AuditedImages(
        table=ImageTable(
            paths=np.array([f"/mine/{row}.jpg" for row in range(len(labels))]),
            labels=labels[:, None],
            split=np.array(split),
            levels=("class",),
        ),
        embeddings=F.normalize(rows, dim=1),
        pictures=draw_pictures(len(labels)),
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
        images.pictures[copy] = images.pictures[0] + torch.randn(32, 32)
    images.pictures[20] = images.pictures[21]  # equal pictures alone, of images that are nothing alike
    images.embeddings[20] = -images.embeddings[21]
    findings = report_duplicates(images, find_duplicate_pairs(images, SETTINGS))
    assert {finding.path for finding in findings} == {f"/mine/{row}.jpg" for row in (0, 1, 70)}
    across = [finding for finding in findings if finding.path in ("/mine/0.jpg", "/mine/1.jpg")]
    assert any("the test flatters the training" in finding.remark for finding in across)


def test_all_of_many_copies_are_known_to_each() -> None:
    labels = make_classes()
    images = make_images(labels, labels, ["train"] * 72)
    copies = [*range(0, 72, 3)]
    images.embeddings[copies], images.pictures[copies] = images.embeddings[0].clone(), images.pictures[0].clone()
    listed = find_duplicate_pairs(images, SETTINGS).list_copies(72)
    for row in range(72):
        assert sorted(listed[row]) == (copies if row in copies else [row])


@pytest.mark.parametrize("change", ["crop", "wide crop", "mirrored crop", "mirrored", "other class", "other picture"])
def test_a_part_of_a_picture_is_a_copy(change: str) -> None:
    """Unless it is mirrored and of another class: two classes may differ in left and right."""
    labels = make_classes()
    images = make_images(labels, labels, ["train"] * 72)
    whole = draw_pictures(72, side=320)[0]
    top, left, height, width = {"mirrored": (0, 0, 320, 320), "wide crop": (90, 0, 200, 320)}.get(
        change, (30, 60, 260, 240)
    )
    part = whole[top : top + height, left : left + width].clone()
    row = 40 if change == "other class" else 7
    part = part.flip(1) if change in ("mirrored", "mirrored crop", "other class") else part
    part = draw_pictures(72, side=320)[50] if change == "other picture" else part
    images.pictures[row] = F.interpolate(part[None, None], (32, 32), mode="area")[0, 0]
    images.embeddings[row] = F.normalize(images.embeddings[0] + 0.1, dim=0)
    pairs = find_duplicate_pairs(images, SETTINGS)
    assert [*zip(pairs.first.tolist(), pairs.second.tolist(), strict=True)] == ([] if "other" in change else [(0, 7)])


def test_pictures_of_one_color_are_parts_of_none() -> None:
    labels = make_classes()
    images = make_images(labels, labels, ["train"] * 72)
    images.embeddings[:] = images.embeddings[0].clone()
    images.pictures[5] = 128
    images.pictures[6] = 130
    pairs = find_duplicate_pairs(images, SETTINGS)
    assert [*zip(pairs.first.tolist(), pairs.second.tolist(), strict=True)] == [(5, 6)]


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
    findings = report_mixed_classes(images, find_neighbors(images, SETTINGS)[0], [[]] * 72, SETTINGS)
    assert [{finding.label, finding.other_label} for finding in findings] == [{"0", "6"}]


def test_a_class_that_is_a_copy_of_another_is_found() -> None:
    """As faces, and the same faces cut out: their nearest neighbors are copies, which don't count as neighbors."""
    labels = make_classes()
    images = make_images(labels, labels, ["train"] * 72)
    copies = [[row, row + 12] if row < 7 else [row - 12, row] if 12 <= row < 19 else [row] for row in range(72)]
    neighbors = find_neighbors(images, SETTINGS, copies)[0]
    (finding,) = report_mixed_classes(images, neighbors, copies, SETTINGS)
    assert {finding.label, finding.other_label} == {"0", "1"}
    assert finding.remark == "12 and 12 images; 58% of one class have copies in the other"
    copies[5:7], copies[17:19] = [[5], [6]], [[17], [18]]  # now 5 of 12
    assert report_mixed_classes(images, neighbors, copies, SETTINGS) == []


def test_two_classes_under_one_name_are_found_and_no_other() -> None:
    groups = make_classes()
    labels = np.where(groups == 5, 4, groups)
    images = make_images(labels, groups, ["train"] * len(labels))
    findings = report_divided_classes(images, SETTINGS)
    assert [finding.label for finding in findings] == ["4"]
    first, second = ({*rows} for rows in findings[0].pictures)
    assert {frozenset(first), frozenset(second)} == {frozenset(range(48, 56)), frozenset(range(60, 68))}
    assert (
        report_divided_classes(make_images(0 * labels, groups, ["train"] * 72), SETTINGS) == []
    )  # with no other class


@pytest.mark.parametrize(("dimensions", "noise"), [(8, 0.6), (32, 1.0), (32, 5.0)])
def test_few_images_of_one_kind_are_not_divided(dimensions: int, noise: float) -> None:
    """Their two clusters have silhouettes up to 0.5; with much noise, the embeddings tell no classes apart."""
    rng = torch.Generator().manual_seed(0)
    labels = make_classes(27)
    images = make_images(labels, labels, ["train"] * len(labels))
    centers = torch.randn(27, dimensions, generator=rng)[torch.from_numpy(labels)]
    embeddings = F.normalize(centers + noise * torch.randn(len(labels), dimensions, generator=rng), dim=1)
    assert len(report_divided_classes(replace(images, embeddings=embeddings), SETTINGS)) <= 2


def test_few_images_need_more_to_make_a_label_doubtful() -> None:
    """The share of chance is that of the images which the principal components need, here 70 and many more."""
    labels = make_classes()
    images = make_images(labels, labels, ["train"] * 72)
    images.table.labels[0], copies = 1, [[] for _ in labels]
    found = estimate_label_probabilities(images, copies, AuditSettings(components=7))
    assert np.flatnonzero(found.is_doubtful).tolist() == [0]
    share = float(found.quality[0]) * found.classes
    strict = AuditSettings(components=int(72 / 10 / share) + 1)
    assert not estimate_label_probabilities(images, copies, strict).is_doubtful.any()


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
        "/mine/3.jpg": "of one color",
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
    rows = iterate_rows(file, ("path", "label"), "")
    assert [(cells["path"], cells["label"]) for _, cells in rows] == [(f"/mine/{name}.jpg", name)]
