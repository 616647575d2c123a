"""What a loss has to be; tests/training/test_module.py has what it has to return."""

from collections import Counter
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from configurations import compose, settings_of
from torch import Tensor, nn

from dml.losses.compose import WeightedSum
from dml.losses.matryoshka import MatryoshkaLoss
from dml.losses.rll import RankedListLoss
from dml.run import builders
from dml.runtime.errors import InputError


class WithoutSuper(nn.Module):
    def __init__(self) -> None:
        self.margin = 0.1


class OfEmbeddings(nn.Module):
    def forward(self, embeddings: Tensor) -> Tensor:
        return embeddings.sum()


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (OfEmbeddings, r"loss: test_loss_contract\.OfEmbeddings\.forward has to take embeddings, labels: too many"),
        (WithoutSuper, r"loss: test_loss_contract\.WithoutSuper isn't a built nn\.Module, whose __init__ begins with"),
        (lambda: WeightedSum({"a": WithoutSuper()}, {"a": 1.0}), r"loss\.terms\.a: test_loss_contract\.WithoutSuper"),
        (lambda: WeightedSum({"a": len}, {"a": 1.0}), r"loss\.terms\.a: builtins\.len isn't a built nn\.Module"),
        (lambda: partial(RankedListLoss), r"loss: dml\.losses\.rll\.RankedListLoss isn't a built nn\.Module"),
        (lambda: MatryoshkaLoss([Counter()], [4]), r"loss\.inner: collections\.Counter isn't a built nn\.Module"),
    ],
)
@pytest.mark.usefixtures("own_code")
def test_what_is_no_loss_is_refused(monkeypatch: pytest.MonkeyPatch, make: Callable[[], object], line: str) -> None:
    monkeypatch.setattr(builders, "build_values", lambda *_: make())
    with pytest.raises(InputError, match=rf"^{line}"):
        builders.build_losses(settings_of(compose()), {"H": 8}, np.zeros((4, 1), np.int64))
