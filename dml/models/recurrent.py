from collections.abc import Callable, Mapping
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from dml.models.backbone import Backbone, ParameterList
from dml.models.embedding import EmbeddingModel
from dml.runtime.errors import check_choice, check_whole

Order = Literal["nearest_first", "farthest_first", "random"]
State = Literal["both_ends", "last_step"]


class StackedLSTM(nn.Module):
    """A stack of bidirectional LSTM layers with dropout between the layers.

    On a CPU this is exactly `nn.LSTM` with several layers. On a GPU, `nn.LSTM` uses cuDNN's dropout, which
    `torch.manual_seed` doesn't reach: each random draw would depend on all steps before. This class uses torch's
    dropout, so that a resumed run repeats the draws.

    >>> states, last = StackedLSTM(input_size=4, hidden_size=3)(torch.zeros(2, 5, 4))
    >>> states.shape, last.shape
    (torch.Size([2, 5, 6]), torch.Size([2, 2, 3]))
    """

    def __init__(self, input_size: int, hidden_size: int, layers: int = 2, dropout: float = 0.0) -> None:
        super().__init__()
        sizes = [input_size, *[2 * hidden_size] * (layers - 1)]
        self.layers = nn.ModuleList(nn.LSTM(size, hidden_size, bidirectional=True) for size in sizes)
        self.dropout = nn.Dropout(dropout)

    def forward(self, sequences: Tensor) -> tuple[Tensor, Tensor]:
        """Read sequences (B, T, D) -> last layer's states (B, T, 2 H), the last one of each direction (2, B, H)."""
        states, last = sequences.transpose(0, 1), sequences.new_empty(0)
        for number, layer in enumerate(self.layers):
            states, (last, _) = layer(self.dropout(states) if number else states)
        return states.transpose(0, 1), last


class RecurrentEmbedding(nn.Module):
    r"""Refines an embedding by its neighbors' embeddings with a bidirectional LSTM.

    The source is the thesis on local neighborhood sampling, chapter 4. f(x) is the embedding of an image, the center,
    by the network in training. x^1, ..., x^K are the embeddings of its nearest neighbors by a frozen network. Two
    bidirectional LSTM layers read the sequence of Eq. 4.2. Eq. 4.3
    computes the refined embedding g from a state h of the LSTM and f(x)::

        [f(x), x^1, ..., x^K]            the center first, then its neighbors
        g = W [h; f(x)] + b

    The thesis contradicts itself twice. The neighbors come in descending order of their distance to the center in
    sections 4.1, 4.2 and 4.3.1, "farthest_first", and in ascending order in chapter 5, "nearest_first". Eq. 4.3 writes
    h_{K+1}^(2), the state of the second layer at the last element: "last_step" takes both directions there, although
    the backward direction has then read only that element. Section 4.2 calls h "the final hidden layer" of the encoder,
    which summarizes the sequence: "both_ends" takes the last state of each direction, and both have read all of it.

    >>> g = RecurrentEmbedding(input_dim=4, output_dim=4, hidden_size=3)
    >>> g(torch.zeros(2, 4), neighbor_embeddings=torch.zeros(2, 5, 4)).shape
    torch.Size([2, 4])

    Args:
        hidden_size: number of units of each direction; the thesis has 256.
        order: order of the neighbors after the center; "random" is the ablation of Table 4.2.
        state: state h of the LSTM, "last_step" or "both_ends".
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        hidden_size: int = 256,
        dropout: float = 0.5,
        order: Order = "farthest_first",
        state: State = "last_step",
    ) -> None:
        super().__init__()
        check_choice("order", order, get_args(Order))
        check_choice("state", state, get_args(State))
        self.order = order
        self.state = state
        self.lstm = StackedLSTM(input_dim, hidden_size, layers=2, dropout=dropout)
        self.embedding = nn.Linear(2 * hidden_size + input_dim, output_dim)

    def forward(self, center: Tensor, neighbor_embeddings: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Compute embeddings g of f (B, D) and neighbors (B, K, D), nearest first, or shuffled by the generator."""
        sequence = torch.cat([center[:, None], self._sort_neighbors(neighbor_embeddings, generator)], dim=1)
        states, last = self.lstm(sequence)
        context = states[:, -1] if self.state == "last_step" else torch.cat([last[0], last[1]], dim=1)
        embeddings: Tensor = self.embedding(torch.cat([context, center], dim=1))
        return embeddings

    def _sort_neighbors(self, neighbor_embeddings: Tensor, generator: torch.Generator | None) -> Tensor:
        if self.order == "nearest_first":
            return neighbor_embeddings
        if self.order == "farthest_first":
            return neighbor_embeddings.flip(1)
        if generator is None:
            raise ValueError("order=random: forward needs a generator to draw the order from")
        order = torch.rand(neighbor_embeddings.shape[:2], generator=generator, device=generator.device).argsort(dim=1)
        return neighbor_embeddings.take_along_dim(order.to(neighbor_embeddings.device)[:, :, None], dim=1)


class RecurrentModel(nn.Module):
    """An embedding model with a `RecurrentEmbedding` for each head, which refines embeddings by their neighbors.

    The neighbors and their embeddings are computed by a frozen copy of the network as it was before this training,
    f_pre-trained of section 4.2. The copy is part of the model, so that neighbors can be found for new images too.

    >>> from dml.models.heads import PoolHead
    >>> from dml.models.small_cnn import small_cnn
    >>> def embed() -> EmbeddingModel:
    ...     return EmbeddingModel(small_cnn(), taps={"H": "pool2"}, head={"H": PoolHead}, heads=["H"], embed_dim=8)
    >>> model = RecurrentModel(embed(), embed(), recurrent=RecurrentEmbedding, neighbors=3)
    >>> model(torch.zeros(2, 3, 28, 28), {"H": torch.zeros(2, 3, 8)})["H"].shape
    torch.Size([2, 8])

    Args:
        pretrained: embedding model of the same structure; it gets the weights of ``cnn`` and is frozen.
            `dml.training.checkpoints.load_initial_weights` loads pre-trained weights into both.
        neighbors: number of neighbors of each image, K; 16 in the thesis.
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
        check_whole("recurrent.neighbors", neighbors, least=1)
        self.cnn = cnn
        self.pretrained = pretrained.requires_grad_(False).eval()
        self.pretrained.load_state_dict(cnn.state_dict())
        self.neighbors = neighbors
        self.embed_dims = cnn.embed_dims
        self.recurrent = nn.ModuleDict({name: recurrent(size, size) for name, size in cnn.embed_dims.items()})

    @property
    def backbone(self) -> Backbone:
        """Return the backbone of the network in training."""
        return self.cnn.backbone

    @property
    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """Return the trained parameters of the groups "backbone" and "heads"; the LSTMs are in "heads"."""
        return self.cnn.parameter_groups | {"heads": ParameterList(nn.ModuleList([self.cnn.heads, self.recurrent]))}

    def train(self, mode: bool = True) -> "RecurrentModel":
        """Set the training mode, but keep the pre-trained network in evaluation mode."""
        super().train(mode)
        self.pretrained.eval()
        return self

    def forward(
        self, images: Tensor, neighbor_embeddings: Mapping[str, Tensor], generator: torch.Generator | None = None
    ) -> dict[str, Tensor]:
        """Compute each head's refined embeddings g (B, D) of RGB images (B, 3, H, W), 0-255, as `read` does."""
        return self.read(self.cnn(images), neighbor_embeddings, generator)

    def read(
        self,
        centers: Mapping[str, Tensor],
        neighbor_embeddings: Mapping[str, Tensor],
        generator: torch.Generator | None = None,
    ) -> dict[str, Tensor]:
        """Compute each head's embeddings g (B, D) of embeddings f (B, D) and neighbors (B, K, D), nearest first."""
        dtype = next(self.recurrent.parameters()).dtype  # those of an embedding bank are float32 in any precision
        return {
            name: recurrent(centers[name].to(dtype), neighbor_embeddings[name].to(dtype), generator)
            for name, recurrent in self.recurrent.items()
        }

    @property
    def chosen_heads(self) -> tuple[str, ...]:
        """Return the names of the heads whose concatenation is the embedding of an image."""
        return self.cnn.chosen_heads

    @chosen_heads.setter
    def chosen_heads(self, heads: tuple[str, ...]) -> None:
        self.cnn.chosen_heads = heads

    def concatenate(self, embeddings: Mapping[str, Tensor]) -> Tensor:
        """Concatenate the embeddings (B, D) of some heads to L2-normalized embeddings (B, sum of D) for evaluation."""
        return self.cnn.concatenate(embeddings)

    def raw_features(self, images: Tensor) -> Tensor:
        """Compute the pooled features (B, F) of the backbone, without any head, of images (B, 3, H, W)."""
        return self.cnn.raw_features(images)


AnyModel = EmbeddingModel | RecurrentModel
