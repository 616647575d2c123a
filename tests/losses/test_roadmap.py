import pytest
import torch
import torch.nn.functional as F
from conftest import ROOT
from examples import examples
from hydra.utils import instantiate
from hypothesis import given
from hypothesis import strategies as st
from loss_batches import check_against_loop, draw_embeddings
from omegaconf import OmegaConf
from torch import Tensor

from dml.losses.happier import SmoothHierarchicalAPLoss
from dml.losses.roadmap import CalibrationLoss

CONF = ROOT / "conf" / "loss"


def by_hand(embeddings: Tensor, labels: list[int], loss: CalibrationLoss) -> Tensor:
    """A pair at a time."""
    unit = F.normalize(embeddings, dim=1)
    too_far: list[Tensor] = []
    too_near: list[Tensor] = []
    for i in range(len(labels)):
        for j in range(len(labels)):
            cosine = (unit[i] * unit[j]).sum()
            if i != j and labels[i] == labels[j] and cosine < loss.positive_bound:
                too_far.append(loss.positive_bound - cosine)
            if labels[i] != labels[j] and cosine > loss.negative_bound:
                too_near.append(cosine - loss.negative_bound)
    if len(set(labels)) == len(labels):
        return torch.zeros((), dtype=embeddings.dtype)
    return sum((torch.stack(pairs).mean() for pairs in (too_far, too_near) if pairs), 0 * embeddings.sum())


@given(
    labels=st.lists(st.integers(0, 4), min_size=2, max_size=10),
    seed=st.integers(0, 10_000),
    bounds=st.sampled_from([(0.9, 0.6), (0.5, -0.2)]),
    duplicates=st.booleans(),
)
@examples(60)
def test_calibration_equals_a_loop_over_pairs(
    labels: list[int], seed: int, bounds: tuple[float, float], duplicates: bool
) -> None:
    loss = CalibrationLoss(*bounds)
    embeddings = draw_embeddings(len(labels), 3, seed)
    if duplicates:
        embeddings[-1] = embeddings[0]
    check_against_loop(loss, lambda rows: by_hand(rows, labels, loss), embeddings, torch.tensor(labels), 1e-11)


def test_calibrated_pairs_cost_nothing() -> None:
    embeddings = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
    loss = CalibrationLoss()
    assert loss(embeddings, torch.tensor([0, 0, 1, 1])) == 0
    assert loss(embeddings, torch.tensor([0, 1, 0, 1])) > 0


def test_roadmap_is_the_finest_levels_smooth_ap_and_calibration() -> None:
    labels = torch.tensor([[i // 2, i // 6] for i in range(12)])
    embeddings = draw_embeddings(12, 4, dtype=torch.float32)
    roadmap = instantiate(OmegaConf.load(CONF / "roadmap.yaml"))
    expected = SmoothHierarchicalAPLoss()(embeddings, labels[:, 0]) + CalibrationLoss()(embeddings, labels[:, 0])
    assert roadmap(embeddings, labels).item() == pytest.approx(expected.item())
    assert roadmap.needs_positives
