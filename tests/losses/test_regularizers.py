from typing import Any

import pytest
import torch
from loss_batches import draw_embeddings, read_batches

from dml.losses.regularizers import EmbeddingDrift, EmbeddingNorm, embedding_drift, embedding_norm
from dml.runtime.errors import InputError


def published(batch: dict[str, Any], name: str) -> float:
    return float(next(case["value"] for case in batch["expected"] if case["loss"] == name))


@pytest.mark.parametrize("batch", read_batches("losses"), ids=["0", "1"])
def test_equals_the_published_vectors(batch: dict[str, Any]) -> None:
    embeddings = torch.tensor(batch["embeddings"], dtype=torch.float64)
    stored = torch.tensor(batch["stored"], dtype=torch.float64)
    norm, drift = published(batch, "embedding_norm"), published(batch, "drift")
    assert embedding_norm(embeddings).item() == pytest.approx(norm, abs=1e-9)
    assert embedding_drift(embeddings, stored).item() == pytest.approx(drift, abs=1e-9)
    assert embedding_norm(embeddings.float()).item() == pytest.approx(norm, rel=1e-4)
    assert embedding_drift(embeddings.float(), stored.float()).item() == pytest.approx(drift, rel=1e-4)


def test_gradients_are_unit_vectors_over_the_batch() -> None:
    embeddings = draw_embeddings(5, 3)
    stored = embeddings + draw_embeddings(5, 3, seed=1)
    leaf = embeddings.clone().requires_grad_()
    (norm,) = torch.autograd.grad(embedding_norm(leaf), leaf)
    (drift,) = torch.autograd.grad(embedding_drift(leaf, stored), leaf)
    torch.testing.assert_close(norm, torch.stack([row / row.norm() / 5 for row in embeddings]))
    torch.testing.assert_close(drift, torch.stack([row / row.norm() / 5 for row in embeddings - stored]))


def test_an_embedding_of_0_and_one_that_has_not_moved_have_no_gradient() -> None:
    leaf = torch.zeros(3, 2, requires_grad=True)
    (embedding_norm(leaf) + embedding_drift(leaf, torch.zeros(3, 2))).backward()
    assert leaf.grad is not None
    assert (leaf.grad == 0).all()


def test_half_precision_is_widened() -> None:
    embeddings = torch.full((2, 512), 100.0, dtype=torch.float16)  # squares add up to 5e6, beyond float16
    assert embedding_norm(embeddings).item() == pytest.approx(100 * 512**0.5)
    assert embedding_drift(embeddings, torch.zeros(2, 512)).item() == pytest.approx(100 * 512**0.5)


def test_the_norm_is_a_term() -> None:
    embeddings = torch.randn(4, 3)
    assert EmbeddingNorm()(embeddings, torch.arange(4)) == embedding_norm(embeddings)


def test_the_drift_takes_the_rows_of_the_batch() -> None:
    embeddings, stored, rows = torch.randn(2, 3), torch.randn(9, 3), torch.tensor([7, 1])
    drift = EmbeddingDrift()
    drift.stored = stored
    assert drift(embeddings, torch.arange(2), indices=rows) == embedding_drift(embeddings, stored[rows])
    assert not drift.state_dict()


def test_the_drift_is_0_before_embeddings_are_stored() -> None:
    leaf = torch.randn(4, 3, requires_grad=True)
    value = EmbeddingDrift()(leaf, torch.arange(4))
    value.backward()
    assert value == 0
    assert leaf.grad is not None
    assert (leaf.grad == 0).all()


def test_the_drift_refuses_other_embeddings() -> None:
    with pytest.raises(InputError, match=r"\(9, 3\), current embeddings: \(2, 3\)"):
        embedding_drift(torch.zeros(2, 3), torch.zeros(9, 3))
