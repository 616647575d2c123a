"""How much memory a loss takes: of each pair of images in a batch it holds a few numbers."""

import pytest
import torch
from configurations import compose, settings_of
from conftest import ROOT
from live_bytes import LiveBytes
from loss_batches import draw_embeddings

from dml.run.builders import build_losses

LARGER = {
    *(
        "angular",
        "angular_n_pair",
        "circle",
        "fast_ap",
        "generalized_lifted",
        "intra_pair_variance",
        "lifted",
        "margin",
    ),
    *("multi_similarity", "pnp", "snr_contrastive", "soft_triple", "sup_con", "threshold_consistent_margin"),
    *("triplet", "triplet_n_pair"),
}
"""The losses that pytorch-metric-learning computes from more; their YAML files say which batch fits."""


@pytest.mark.first_cases(3)
@pytest.mark.parametrize("name", sorted({path.stem for path in (ROOT / "conf" / "loss").glob("*.yaml")} - LARGER))
def test_memory_is_at_most_eight_numbers_of_each_pair(name: str) -> None:
    batch, size = 1024, 256
    fine = torch.arange(batch) // 4
    labels = torch.stack([fine, fine // 32], dim=1)
    loss = build_losses(settings_of(compose(f"loss={name}")), {"H": size}, labels.numpy())["H"]
    embeddings = draw_embeddings(batch, size, dtype=torch.float32).requires_grad_()
    with LiveBytes() as live:
        loss(embeddings, labels).backward()
    assert live.peak <= 4 * (8 * batch**2 + 8 * batch * size)
