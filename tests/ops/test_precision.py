import pytest
import torch
from torch import Tensor, nn

from dml.ops.precision import full_float32, full_precision


class Product(nn.Module):
    """Remembers what reached it."""

    @full_precision
    def forward(self, embeddings: Tensor) -> Tensor:
        self.seen = embeddings.dtype, torch.is_autocast_enabled("cpu")
        return (embeddings @ embeddings.T).sum()


def embeddings(dtype: torch.dtype) -> Tensor:
    return torch.randn(8, 16, generator=torch.Generator().manual_seed(0)).to(dtype)


@pytest.mark.parametrize("autocast", [None, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("input_dtype", "computed"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_computes_in_at_least_float32(
    input_dtype: torch.dtype, computed: torch.dtype, autocast: torch.dtype | None
) -> None:
    rows, product = embeddings(input_dtype), Product()
    with torch.autocast("cpu", autocast or torch.bfloat16, enabled=autocast is not None):
        value = product(rows)
        assert torch.is_autocast_enabled("cpu") is (autocast is not None)  # left inside alone
    assert product.seen == (computed, False)
    assert value.dtype == computed
    wide = rows.to(computed)
    assert value == (wide @ wide.T).sum()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_gradient_returns_in_the_precision_given(dtype: torch.dtype) -> None:
    rows = embeddings(dtype).requires_grad_()
    Product()(rows).backward()
    assert rows.grad is not None
    assert rows.grad.dtype == dtype
    wide = rows.detach().float().requires_grad_()
    Product()(wide).backward()
    torch.testing.assert_close(rows.grad, wide.grad.to(dtype), rtol=0, atol=0)


def test_computes_with_all_bits_whatever_the_network_does() -> None:
    class Asks(nn.Module):
        @full_precision
        def forward(self, embeddings: Tensor) -> Tensor:
            self.precision = torch.get_float32_matmul_precision()
            return embeddings.sum()

    asks = Asks()
    torch.set_float32_matmul_precision("high")
    try:
        asks(embeddings(torch.float32))
        assert (asks.precision, torch.get_float32_matmul_precision()) == ("highest", "high")
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize(("device", "inside"), [("cuda", ("highest", False)), ("cpu", ("high", True))])
def test_convolutions_on_a_gpu_have_all_bits_in_the_body_alone(
    device: str, inside: tuple[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    torch.set_float32_matmul_precision("high")
    try:
        with full_float32(torch.device(device)):
            assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == inside
        assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == ("high", True)
    finally:
        torch.set_float32_matmul_precision("highest")
