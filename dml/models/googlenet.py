import torch
from torch import Tensor, nn
from torchvision.models import GoogLeNet

LAYERS = (
    *("conv1", "maxpool1", "conv2", "conv3", "maxpool2", "inception3a", "inception3b", "maxpool3"),
    *("inception4a", "inception4b", "inception4c", "inception4d", "inception4e", "maxpool4"),
    *("inception5a", "inception5b"),
)
BRANCHES = {"inception4a": "aux1", "inception4d": "aux2"}
"""The auxiliary branches by the layers that they begin at."""

BRANCH_WEIGHTS = ("aux1.", "aux2.")
LAST_LAYERS = ("fc.", "aux1.fc2.", "aux2.fc2.")
"""Prefixes of the weights of the 1000-class layers, which `BranchedGoogLeNet` lacks."""


class BranchedGoogLeNet(GoogLeNet):  # type: ignore[misc]  # torchvision has no types
    """torchvision's GoogLeNet with its two auxiliary branches, each without its last layer.

    torchvision runs the branches in training alone; here they run in evaluation as well, so that "aux1" and "aux2" can
    be tapped: their outputs (B, 1024, 1, 1) are the features that the branch's 1000-class layer took. Its dropout goes
    with that layer.
    """

    def __init__(self) -> None:
        super().__init__(aux_logits=True, transform_input=False, init_weights=False)
        self.fc = self.dropout = nn.Identity()
        for branch in (self.aux1, self.aux2):
            branch.dropout = nn.Identity()
            branch.fc2 = nn.Unflatten(1, (1024, 1, 1))  # a map of one cell, which heads can embed

    def forward(self, images: Tensor) -> Tensor:
        """Images (B, 3, H, W) -> pooled features (B, 1024)."""
        maps = images
        for name in LAYERS:
            maps = self.get_submodule(name)(maps)
            if branch := BRANCHES.get(name):
                self.get_submodule(branch)(maps)
        return torch.flatten(self.avgpool(maps), 1)

    @property
    def has_trained_branches(self) -> bool:
        """Whether the branches' batch normalisation has seen images: the running means begin at 0."""
        norms = [module for branch in (self.aux1, self.aux2) for module in branch.modules()]
        means = [norm.running_mean for norm in norms if isinstance(norm, nn.BatchNorm2d)]
        return all(mean is not None and bool(mean.any()) for mean in means)
