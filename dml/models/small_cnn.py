from collections import OrderedDict
from typing import Any

from torch import Tensor, nn

from dml.models.backbone import Backbone
from dml.models.weights import load_file

CHANNELS = (32, 64)
KERNEL = 5


def small_cnn(weights: str | None = None, **settings: Any) -> Backbone:
    """Two convolutions for images of some 8 to 32 pixels, each with a ReLU and a pool that halves the map.

    With `FullyConnectedHead` after it the "simple neural network with two convolutional and one fully connected
    layers" of NRA's Fig. 4 (Schall et al., 2019), which gives no sizes; these are LeNet's kernels with more channels.

    Args:
        weights: None for random ones, or the path of a state_dict file; there are none to download.
        settings: go to `Backbone`.

    Raises:
        InputError: if there is no such file, or it is of another network.
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
    """One linear layer of a whole map, which fixes its height and width.

    Args:
        shape: (C, h, w) of the tapped map.
        embed_dim: size of the embedding.
    """

    def __init__(self, shape: tuple[int, int, int], embed_dim: int) -> None:
        super().__init__()
        channels, height, width = shape
        self.embedding = nn.Linear(channels * height * width, embed_dim)

    def forward(self, tapped: Tensor) -> Tensor:
        """(B, C, h, w) -> (B, embed_dim)."""
        embeddings: Tensor = self.embedding(tapped.flatten(1))
        return embeddings
