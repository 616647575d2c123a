"""What a loss has to be; tests/training/test_module.py has what it has to return."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from textwrap import wrap

import numpy as np
import pytest
from configurations import compose, settings_of
from torch import Tensor, nn

from dml.losses.compose import AtLevel, WeightedSum
from dml.losses.matryoshka import MatryoshkaLoss
from dml.run import builders
from dml.runtime.errors import InputError


class WithoutSuper(nn.Module):
    def __init__(self) -> None:
        self.margin = 0.1


class WithoutForward(nn.Module):
    pass


class OfEmbeddings(nn.Module):
    def forward(self, embeddings: Tensor) -> Tensor:
        return embeddings.sum()


@pytest.mark.parametrize(
    ("made", "line"),
    [
        (WithoutSuper, r"loss: test_loss_contract\.WithoutSuper\.__init__ has to begin with super\(\)\.__init__\(\)"),
        (
            lambda: WeightedSum({"a": WithoutSuper()}, {"a": 1.0}),
            r"loss\.terms\.a: test_loss_contract\.WithoutSuper\._",
        ),
        (lambda: AtLevel(WithoutSuper(), 0), r"loss: test_loss_contract\.WithoutSuper\.__init__ has to begin"),
        (lambda: WeightedSum({"a": len}, {"a": 1.0}), r"loss\.terms\.a: builtins\.len is a function, expected an"),
        (lambda: partial(OfEmbeddings), r"loss: test_loss_contract\.OfEmbeddings isn't built with _partial_=true"),
        (lambda: MatryoshkaLoss([Counter()], [4]), r"loss\.inner: collections\.Counter isn't a subclass of nn\.Module"),
        (lambda: partial(wrap), r"loss: textwrap\.wrap is a function, expected an nn\.Module"),
        (Counter, r"loss: collections\.Counter isn't a subclass of nn\.Module"),
        (
            WithoutForward,
            r"loss: test_loss_contract\.WithoutForward has no forward, expected forward\(embeddings, labels\)",
        ),
        (
            OfEmbeddings,
            r"loss: test_loss_contract\.OfEmbeddings\.forward takes \(embeddings.*expected \(embeddings, label",
        ),
    ],
)
@pytest.mark.usefixtures("own_code")
def test_what_is_no_loss_is_refused(monkeypatch: pytest.MonkeyPatch, made: Callable[[], object], line: str) -> None:
    monkeypatch.setattr(builders, "build", lambda _: made())
    with pytest.raises(InputError, match=rf"^{line}"):
        builders.build_losses(settings_of(compose()), {"H": 8}, np.zeros((4, 1), np.int64))
