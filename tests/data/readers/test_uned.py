from pathlib import Path

import numpy as np
import pytest
from trees.uned import DOMAINS, INDEXED, LISTS, TREE

from dml.data.readers.uned import read
from dml.evaluation.evaluator import evaluate_table


def as_set(label: int | list[int]) -> set[int]:
    return set(label) if isinstance(label, list) else {label}


def test_the_protocol_of_the_merged_gallery(tmp_path: Path) -> None:
    """Against a loop over each domain's queries: the own image is no neighbor, and R counts the own domain alone."""
    TREE.build(tmp_path)
    table = read(tmp_path).select_evaluated("test")
    names = {path: path.partition("/images/")[2] for path in table.paths.tolist()}
    rng = np.random.default_rng(4)
    vectors = {name: rng.normal(size=4) for name in sorted(set(names.values()))}
    vectors = {name: vector / np.linalg.norm(vector) for name, vector in vectors.items()}
    embeddings = np.stack([vectors[names[path]] for path in table.paths.tolist()])
    found = evaluate_table(embeddings, table, metrics=["recall", "mmp5"], recall_at=(1,))
    gallery = [
        (domain, image, as_set(label))
        for domain in DOMAINS
        for image, label in LISTS[domain]["index" if domain in INDEXED else "test"]
    ]
    means = []
    for level, domain in enumerate(DOMAINS, 1):
        recalls, precisions = [], []
        for image, label in LISTS[domain]["test"]:
            others = [item for item in gallery if item[1] != image]
            others.sort(key=lambda item, image=image: -vectors[item[1]] @ vectors[image])
            hits = [item[0] == domain and bool(item[2] & as_set(label)) for item in others]
            recalls.append(hits[0])
            precisions.append(np.mean(hits[: min(sum(hits), 5)]))
        assert found[f"level{level}/recall@1"] == pytest.approx(np.mean(recalls), abs=1e-9)
        assert found[f"level{level}/mmp5"] == pytest.approx(np.mean(precisions), abs=1e-9)
        means.append((np.mean(recalls), np.mean(precisions)))
    assert (found["mean/recall@1"], found["mean/mmp5"]) == pytest.approx(np.mean(means, axis=0), abs=1e-9)
    assert 0 < found["mean/mmp5"] < 1


def test_training_is_by_class_of_all_domains(tmp_path: Path) -> None:
    TREE.build(tmp_path)
    table = read(tmp_path)
    training = table.subset("train").renumber()
    assert table.levels == ("class", *DOMAINS)
    assert sorted(set(training.labels[:, 0].tolist())) == list(range(16))
    assert training.name_class(training.labels[0, 0]) == "cars train 0"
    assert (training.labels[:, 1:] == -1).all()
    assert set(table.subset("val").benchmark.tolist()) == {0}
