"""Doubtful labels of made-up embeddings: against loops over images and classes."""

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.nn.functional as F

from dml.data.table import UNKNOWN
from dml.evaluation import doubtful_labels
from dml.evaluation.doubtful_labels import find_doubtful_labels


def draw_embeddings(labels: npt.NDArray[np.int64]) -> torch.Tensor:
    """Draw embeddings (N, 16) around the centers of their classes."""
    rng = torch.Generator().manual_seed(0)
    centers = torch.randn(int(labels.max()) + 1, 16, generator=rng)
    return F.normalize(centers[torch.from_numpy(labels)] + 0.4 * torch.randn(len(labels), 16, generator=rng), dim=1)


def judge_slowly(
    embeddings: npt.NDArray[np.float64], labels: npt.NDArray[np.int64], groups: npt.NDArray[np.int64]
) -> dict[int, tuple[float, int]]:
    """The chance and the most probable other class of each image whose class has another, by loops."""
    count = len(labels)

    def list_others(row: int, label: int) -> list[int]:
        return [i for i in range(count) if labels[i] == label and groups[i] != groups[row]]

    rows = [i for i in range(count) if labels[i] != UNKNOWN and list_others(i, labels[i])]
    classes = sorted({int(labels[i]) for i in rows})
    judged = {}
    for row in rows:
        means = {}
        for label in classes:
            nearest = sorted((float(embeddings[row] @ embeddings[i]) for i in list_others(row, label)), reverse=True)
            means[label] = np.mean(nearest[:3]) if nearest else -1.0
        total = sum(np.exp(mean / 0.07) for mean in means.values())
        chance = len(classes) * np.exp(means[int(labels[row])] / 0.07) / total
        judged[row] = (float(chance), max((label for label in classes if label != labels[row]), key=lambda k: means[k]))
    return judged


@pytest.mark.parametrize("block_values", [1 << 24, 200])
def test_doubtful_labels_are_those_of_loops(block_values: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doubtful_labels, "BLOCK_VALUES", block_values)
    truth = np.repeat(np.arange(8), [12, 1, 2, 5, 9, 9, 3, 20])
    embeddings, labels, groups = draw_embeddings(truth), truth.copy(), np.arange(len(truth))
    labels[[3, 30, 50]], labels[[5, 35]] = [7, 0, 4], UNKNOWN
    groups[[14, 51]] = groups[13], groups[50]  # one class has copies of one image alone
    share = len(labels) / 3200
    judged = judge_slowly(embeddings.double().numpy(), labels, groups)
    expected = sorted((chance, row, label) for row, (chance, label) in judged.items() if chance < share)
    found = find_doubtful_labels(embeddings, labels, groups)
    assert {30, 50} <= {*found.rows.tolist()} < {*range(len(labels))}
    assert found.rows.tolist() == [row for _, row, _ in expected]
    assert found.suggested.tolist() == [label for _, _, label in expected]
    np.testing.assert_allclose(found.chances, [chance for chance, _, _ in expected], rtol=1e-3)


def test_copies_of_an_image_do_not_speak_for_its_label() -> None:
    truth = np.repeat(np.arange(6), 12)
    embeddings, labels = draw_embeddings(truth), truth.copy()
    embeddings[:3], labels[:3] = embeddings[0].clone(), 1
    alone = np.arange(72)
    assert not {0, 1, 2} & {*find_doubtful_labels(embeddings, labels, alone).rows.tolist()}
    assert {0, 1, 2} <= {*find_doubtful_labels(embeddings, labels, np.maximum(alone, 2)).rows.tolist()}


def test_no_label_of_one_class_or_of_none_is_doubtful() -> None:
    embeddings = draw_embeddings(np.repeat(np.arange(6), 12))
    for labels in (np.zeros(72, dtype=np.int64), np.full(72, UNKNOWN), np.arange(72)):
        assert not len(find_doubtful_labels(embeddings, labels, np.arange(72)).rows)
