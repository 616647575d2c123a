from collections.abc import Callable, Mapping
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from dml.models.backbone import Backbone
from dml.models.embedding import EmbeddingModel
from dml.ops.errors import InputError

Order = Literal["nearest_first", "farthest_first", "random"]
State = Literal["both_ends", "last_step"]


class StackedLSTM(nn.Module):
    """Bidirectional LSTM layers on one another, with dropout between them.

    `nn.LSTM` with several layers is the same on a CPU, to the last bit. On a GPU its dropout is cuDNN's, which draws
    from a state of its own that `torch.manual_seed` doesn't reach: a step's draw would depend on all steps before it.
    Here the dropout is torch's.

    Args:
        input_size: D of the sequence's elements.
        hidden_size: units of each direction of each layer.
        layers: their number.
        dropout: between two layers, in training.
    """

    def __init__(self, input_size: int, hidden_size: int, layers: int = 2, dropout: float = 0.0) -> None:
        super().__init__()
        sizes = [input_size, *[2 * hidden_size] * (layers - 1)]
        self.layers = nn.ModuleList(nn.LSTM(size, hidden_size, bidirectional=True) for size in sizes)
        self.dropout = nn.Dropout(dropout)

    def forward(self, sequences: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T, D) -> the last layer's states (B, T, 2 H), and each direction's after its last step (2, B, H)."""
        states, last = sequences.transpose(0, 1), sequences.new_empty(0)
        for number, layer in enumerate(self.layers):
            states, (last, _) = layer(self.dropout(states) if number else states)
        return states.transpose(0, 1), last


class RecurrentEmbedding(nn.Module):
    r"""An embedding read off its neighbourhood by a bidirectional LSTM (thesis on local neighborhood sampling, ch. 4).

    f(x) is the centre's embedding by the current network, x^1, ..., x^K its nearest neighbours' embeddings, which
    come from the stored table in training and inference alike. Two LSTM layers, `hidden_size` units in each
    direction, read the sequence of Eq. 4.2, and Eq. 4.3 makes of their context h and the centre::

        [f(x), x^1, ..., x^K]            the centre first, then its neighbours
        g = W [h; f(x)] + b

    Which state h is. Section 4.2 asks for "the final hidden layer" of the encoder, which summarises the sequence, as
    encoders and decoders commonly use it: "both_ends" takes each direction after its own last step, so that both
    have read all. Eq. 4.3 writes h_{K+1}^(2), of the second layer at the sequence's last place: "last_step" takes
    both directions there, of which the backward one has then read the last element alone.

    Args:
        input_dim: D of the centre and its neighbours.
        output_dim: of g.
        hidden_size: units of a direction; the thesis has 256 + 256.
        dropout: between the two layers, in training.
        order: of the neighbours; the centre is first in any case. "random" is the ablation without ordering
            (Table 4.2).
        state: "both_ends" or "last_step".
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        hidden_size: int = 256,
        dropout: float = 0.5,
        order: Order = "nearest_first",
        state: State = "both_ends",
    ) -> None:
        super().__init__()
        if order not in get_args(Order):
            raise InputError(f"order={order}: one of {', '.join(get_args(Order))}")
        if state not in get_args(State):
            raise InputError(f"state={state}: one of {', '.join(get_args(State))}")
        self.order = order
        self.state = state
        self.lstm = StackedLSTM(input_dim, hidden_size, layers=2, dropout=dropout)
        self.embedding = nn.Linear(2 * hidden_size + input_dim, output_dim)

    def forward(self, centre: Tensor, neighbours: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """centre (B, D), its neighbours (B, K, D) nearest first -> (B, output_dim)

        A random order is drawn from the generator, for each row its own; the same seed draws the same again.

        Raises ValueError if the order is random and there is no generator.
        """
        sequence = torch.cat([centre[:, None], self._ordered(neighbours, generator)], dim=1)
        states, last = self.lstm(sequence)
        context = states[:, -1] if self.state == "last_step" else torch.cat([last[0], last[1]], dim=1)
        embeddings: Tensor = self.embedding(torch.cat([context, centre], dim=1))
        return embeddings

    def _ordered(self, neighbours: Tensor, generator: torch.Generator | None) -> Tensor:
        if self.order == "nearest_first":
            return neighbours
        if self.order == "farthest_first":
            return neighbours.flip(1)
        if generator is None:
            raise ValueError("order=random: forward needs a generator to draw the order from")
        order = torch.rand(neighbours.shape[:2], generator=generator, device=generator.device).argsort(dim=1)
        return neighbours.take_along_dim(order.to(neighbours.device)[:, :, None], dim=1)


class RecurrentModel(nn.Module):
    """An embedding model whose embeddings are read off their neighbourhoods, for each head by its own LSTM.

    Neighbours, and their embeddings, are those that the pre-trained network stored: f_pre-trained of section 4.2,
    which is kept as it was when this model's training began, so that an image of any split can be given neighbours.

    Args:
        cnn: f, trained further together with the LSTMs.
        pretrained: the same network once more; frozen. `dml.training.checkpoints.begin_from` gives both the weights.
        recurrent: (D of a head, D) -> its `RecurrentEmbedding`.
        neighbors: K, of each image; 16 in the thesis.
    """

    def __init__(
        self,
        cnn: EmbeddingModel,
        pretrained: EmbeddingModel,
        *,
        recurrent: Callable[[int, int], RecurrentEmbedding],
        neighbors: int = 16,
    ) -> None:
        super().__init__()
        if neighbors < 1:
            raise InputError(f"recurrent.neighbors={neighbors}: at least 1")
        self.cnn = cnn
        self.pretrained = pretrained.requires_grad_(False).eval()
        self.pretrained.load_state_dict(cnn.state_dict())
        self.neighbors = neighbors
        self.embed_dims = cnn.embed_dims
        self.recurrent = nn.ModuleDict({name: recurrent(size, size) for name, size in cnn.embed_dims.items()})

    @property
    def backbone(self) -> Backbone:
        """Of the network in training."""
        return self.cnn.backbone

    @property
    def roles(self) -> dict[str, list[nn.Parameter]]:
        """The parameters in training by what optimizers tell apart; the LSTMs are new layers as the heads are."""
        own = self.cnn.roles
        return own | {"heads": own["heads"] + list(self.recurrent.parameters())}

    def train(self, mode: bool = True) -> "RecurrentModel":
        """Training mode for all but the pre-trained network."""
        super().train(mode)
        self.pretrained.eval()
        return self

    def forward(
        self, images: Tensor, neighbours: Mapping[str, Tensor], generator: torch.Generator | None = None
    ) -> dict[str, Tensor]:
        """images (B, 3, H, W), for each head their stored neighbours (B, K, D) nearest first -> its g (B, D)."""
        return self.read(self.cnn(images), neighbours, generator)

    def read(
        self, centres: Mapping[str, Tensor], neighbours: Mapping[str, Tensor], generator: torch.Generator | None = None
    ) -> dict[str, Tensor]:
        """For each head f (B, D) and the stored neighbours (B, K, D) nearest first -> its g (B, D)."""
        return {
            name: recurrent(centres[name], neighbours[name], generator) for name, recurrent in self.recurrent.items()
        }

    def concatenate(self, embeddings: Mapping[str, Tensor]) -> Tensor:
        """Each head's embeddings (B, D) -> the L2-normalised test embeddings (B, sum of D)."""
        return self.cnn.concatenate(embeddings)

    def raw_features(self, images: Tensor) -> Tensor:
        """The backbone's own pooled features (B, F), which no head has seen."""
        return self.cnn.raw_features(images)
