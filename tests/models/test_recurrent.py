import pytest
import torch
from torch import Tensor, nn

from dml.models.recurrent import RecurrentEmbedding, StackedLSTM
from dml.runtime.errors import InputError

ORDERS = ["nearest_first", "farthest_first", "random"]
STATES = ["last_step", "both_ends"]


def network(**settings: object) -> RecurrentEmbedding:
    torch.manual_seed(0)
    return RecurrentEmbedding(5, 4, hidden_size=3, **settings).double()


def batch(rows: int = 6, neighbors: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    center = torch.randn(rows, 5, generator=generator, dtype=torch.float64)
    return center, torch.randn(rows, neighbors, 5, generator=generator, dtype=torch.float64)


def steps(parameters: dict[str, Tensor], inputs: list[Tensor], suffix: str) -> list[Tensor]:
    """Eq. 2.58 - 2.63 with biases, from the first input to the last: the hidden state after each of them."""

    def gates(index: int, value: Tensor, hidden: Tensor) -> Tensor:
        rows = slice(3 * index, 3 * index + 3)  # PyTorch stacks input, forget, cell and output gate
        own = parameters[f"weight_ih_l0{suffix}"][rows] @ value + parameters[f"bias_ih_l0{suffix}"][rows]
        return own + parameters[f"weight_hh_l0{suffix}"][rows] @ hidden + parameters[f"bias_hh_l0{suffix}"][rows]

    hidden = cell = torch.zeros(3, dtype=torch.float64)
    states = []
    for value in inputs:
        into, forget, out = (torch.sigmoid(gates(index, value, hidden)) for index in (0, 1, 3))
        new = torch.tanh(gates(2, value, hidden))
        cell = forget * cell + into * new
        hidden = out * torch.tanh(cell)
        states.append(hidden)
    return states


def by_hand(model: RecurrentEmbedding, sequence: list[Tensor], state: str) -> Tensor:
    """Eq. 4.3 for one sequence, the center first."""
    inputs = sequence
    for layer in range(2):
        parameters = dict(model.lstm.layers[layer].named_parameters())
        forward = steps(parameters, inputs, "")
        backward = steps(parameters, inputs[::-1], "_reverse")[::-1]
        inputs = [torch.cat(pair) for pair in zip(forward, backward, strict=True)]  # Eq. 2.55 - 2.57
    context = inputs[-1] if state == "last_step" else torch.cat([forward[-1], backward[0]])
    return model.embedding.weight @ torch.cat([context, sequence[0]]) + model.embedding.bias


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("order", ORDERS[:2])
@pytest.mark.parametrize("neighbors", [1, 4])
def test_equals_a_loop_by_hand(order: str, state: str, neighbors: int) -> None:
    model = network(order=order, state=state).eval()
    center, near = batch(neighbors=neighbors)
    embeddings = model(center, near)
    assert embeddings.shape == (6, 4)
    for row in range(6):
        others = list(near[row]) if order == "nearest_first" else list(near[row])[::-1]
        expected = by_hand(model, [center[row], *others], state)
        torch.testing.assert_close(embeddings[row], expected, rtol=1e-12, atol=1e-12)


def test_the_default_reads_farthest_first_to_the_last_step() -> None:
    center, near = batch()
    expected = network(order="farthest_first", state="last_step").eval()(center, near)
    assert network().eval()(center, near).tolist() == expected.tolist()


def test_a_random_order_is_some_order_of_the_neighbors_for_each_row() -> None:
    center, near = batch(rows=20, neighbors=3)
    model = network(order="random").eval()
    ordered = network().eval()
    embeddings = model(center, near, torch.Generator().manual_seed(0))
    orders = torch.tensor([[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]])
    every = torch.stack([ordered(center, near[:, order]) for order in orders])
    matches = (every - embeddings).abs().amax(dim=2) < 1e-12
    assert (matches.sum(dim=0) == 1).all()
    assert matches.any(dim=1).sum() >= 4


def test_a_random_order_is_the_generators_alone() -> None:
    center, near = batch(rows=37)
    model = network(order="random").eval()
    expected = model(center, near, torch.Generator().manual_seed(0))
    torch.manual_seed(9)
    assert model(center, near, torch.Generator().manual_seed(0)).tolist() == expected.tolist()
    assert model(center, near, torch.Generator().manual_seed(1)).tolist() != expected.tolist()
    generator = torch.Generator().manual_seed(0)
    parts = [model(center[rows], near[rows], generator) for rows in (slice(0, 5), slice(5, 30), slice(30, 37))]
    torch.testing.assert_close(torch.cat(parts), expected, rtol=1e-12, atol=1e-12)
    with pytest.raises(ValueError, match="order=random: forward needs a generator"):
        model(center, near)


def test_dropout_is_between_the_layers_and_in_training_alone() -> None:
    center, near = batch()
    model = network()
    assert (model.lstm.dropout.p, len(model.lstm.layers)) == (0.5, 2)
    assert not torch.equal(model(center, near), model(center, near))
    model.eval()
    assert torch.equal(model(center, near), model(center, near))
    still = network(dropout=0.0)
    assert torch.equal(still(center, near), still(center, near))


def test_layers_draw_and_compute_what_torchs_stacked_layers_do() -> None:
    torch.manual_seed(0)
    own = StackedLSTM(5, 3, layers=2, dropout=0.5)
    torch.manual_seed(0)
    whole = nn.LSTM(5, 3, num_layers=2, batch_first=True, dropout=0.5, bidirectional=True)
    assert [torch.equal(a, b) for a, b in zip(own.parameters(), whole.parameters(), strict=True)] == [True] * 16
    sequences = batch()[1].float()
    torch.manual_seed(1)
    states, last = own(sequences)
    torch.manual_seed(1)
    expected, (lasts, _) = whole(sequences)
    assert torch.equal(states, expected)
    assert torch.equal(last, lasts[2:])


@pytest.mark.parametrize(
    ("state", "unused"), [("last_step", {"lstm.layers.1.weight_hh_l0_reverse"}), ("both_ends", set())]
)
def test_gradients_reach_the_center_through_both_paths_and_the_weights(state: str, unused: set[str]) -> None:
    model = network(dropout=0.0, state=state)
    center, near = batch()
    center.requires_grad_()
    embeddings = model(center, near)
    embeddings.sum().backward()
    assert center.grad is not None
    direct = model.embedding.weight[:, 6:].sum(dim=0)
    assert ((center.grad - direct).abs().amax(dim=1) > 1e-6).all()
    assert {name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()} == unused


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"order": "nearest"}, "order=nearest: must be one of nearest_first, farthest_first, random"),
        ({"state": "mean"}, "state=mean: must be both_ends or last_step"),
    ],
)
def test_unknown_settings(settings: dict[str, str], message: str) -> None:
    with pytest.raises(InputError) as error:
        RecurrentEmbedding(5, 4, **settings)
    assert str(error.value) == message
