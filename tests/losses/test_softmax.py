import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from dml.losses.softmax import SoftmaxLoss


@given(seed=st.integers(0, 2**16), rows=st.integers(1, 6), classes=st.integers(2, 5), size=st.integers(1, 4))
def test_it_is_the_cross_entropy_of_a_linear_classifier(seed: int, rows: int, classes: int, size: int) -> None:
    torch.manual_seed(seed)
    loss = SoftmaxLoss(classes, size).double()
    embeddings = 3 * torch.randn(rows, size, dtype=torch.float64)
    labels = torch.randint(classes, (rows,))
    weight, bias = loss.classifier.weight.tolist(), loss.classifier.bias.tolist()
    total = 0.0
    for row, label in zip(embeddings.tolist(), labels.tolist(), strict=True):
        logits = [sum(w * v for w, v in zip(weight[z], row, strict=True)) + bias[z] for z in range(classes)]
        total -= math.log(math.exp(logits[label]) / sum(map(math.exp, logits)))
    torch.testing.assert_close(loss(embeddings, labels).item(), total / rows)


def test_the_length_of_an_embedding_counts() -> None:
    """Unlike under the normalized softmax."""
    torch.manual_seed(0)
    loss = SoftmaxLoss(3, 2)
    embeddings, labels = torch.randn(6, 2), torch.arange(6) % 3
    assert not torch.isclose(loss(embeddings, labels), loss(2 * embeddings, labels))
