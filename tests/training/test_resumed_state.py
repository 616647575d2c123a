from typing import Any

import pytest
import torch
from pytorch_metric_learning.losses import ContrastiveLoss
from torch import nn

from dml.losses.baselines import PairLoss
from dml.losses.csl import CSLLoss
from dml.losses.memory import CrossBatchMemory
from dml.runtime.errors import InputError
from dml.training.checkpoints import check_resumed_state


def check(before: nn.Module, after: nn.Module) -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    states: list[Any] = [optimizer.state_dict()]
    check_resumed_state({"state_dict": before.state_dict(), "optimizer_states": states}, after, optimizer)


def memory(size: int) -> nn.Module:
    loss = PairLoss(ContrastiveLoss(), miner=None, normalize=True)
    return nn.ModuleDict({"H": CrossBatchMemory(loss, embedding_dim=4, size=size)})


def test_a_memory_of_another_size_is_refused() -> None:
    check(memory(8), memory(8))
    with pytest.raises(InputError, match=r"resume: H\.embeddings had the shape \(8, 4\) and has \(6, 4\) now"):
        check(memory(8), memory(6))


def test_the_hierarchy_of_csl_takes_the_shape_of_the_checkpoints() -> None:
    before, after = (CSLLoss(num_classes=5, embedding_dim=4) for _ in range(2))
    before.set_hierarchy(torch.zeros(2, 3, dtype=torch.long))
    assert before.hierarchy.shape != after.hierarchy.shape
    check(nn.ModuleDict({"H": before}), nn.ModuleDict({"H": after}))
