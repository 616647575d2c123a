from collections import OrderedDict
from typing import Any

from torch import Tensor, nn

from dml.models.backbone import Backbone
from dml.models.weights import load_file

CHANNELS = (32, 64)
KERNEL = 5


def small_cnn(weights: str | None = None, **settings: Any) -> Backbone:
    """Build a network of two convolutions, each with a ReLU and a pool, for images of about 8 to 32 pixels.

    Together with `FullyConnectedHead` this is the "simple neural network with two convolutional and one fully
    connected layers" of NRA's Fig. 4 (Schall et al., 2019). The paper states no sizes; the kernels are those of LeNet,
    with more channels.

    >>> import torch
    >>> small_cnn()(torch.zeros(2, 3, 28, 28))[0].shape
    torch.Size([2, 3136])
    """
    first, second = CHANNELS
    network = nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(3, first, KERNEL, padding="same"),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(first, second, KERNEL, padding="same"),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            features=nn.Flatten(),
        )
    )
    if weights is not None:
        load_file(network, weights, ignore=())
    return Backbone(network, **{"mean": (0.5,) * 3, "std": (0.5,) * 3, **settings})


class FullyConnectedHead(nn.Module):
    """A linear layer of all cells and channels of a map, for maps of one size.

    >>> import torch
    >>> FullyConnectedHead((64, 7, 7), embed_dim=8)(torch.zeros(2, 64, 7, 7)).shape
    torch.Size([2, 8])
    """

    def __init__(self, shape: tuple[int, int, int], embed_dim: int) -> None:
        super().__init__()
        channels, height, width = shape
        self.embedding = nn.Linear(channels * height * width, embed_dim)

    def forward(self, tapped: Tensor) -> Tensor:
        """Embed a tapped map (B, C, h, w) -> (B, embed_dim)."""
        embeddings: Tensor = self.embedding(tapped.flatten(1))
        return embeddings
