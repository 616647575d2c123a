import torch
from torch import Tensor, nn
from torchvision.models import GoogLeNet

LAYERS = (
    *("conv1", "maxpool1", "conv2", "conv3", "maxpool2", "inception3a", "inception3b", "maxpool3"),
    *("inception4a", "inception4b", "inception4c", "inception4d", "inception4e", "maxpool4"),
    *("inception5a", "inception5b"),
)
BRANCHES = {"inception4a": "aux1", "inception4d": "aux2"}
"""Auxiliary branch that begins at a layer, by the name of that layer."""

BRANCH_WEIGHTS = ("aux1.", "aux2.")
"""Prefixes of the weights of the auxiliary branches."""

LAST_LAYERS = ("fc.", "aux1.fc2.", "aux2.fc2.")
"""Prefixes of the weights of the 1000-class layers, which `BranchedGoogLeNet` doesn't have."""


class BranchedGoogLeNet(GoogLeNet):  # type: ignore[misc]  # torchvision has no types
    """GoogLeNet of torchvision with both auxiliary branches and without any 1000-class layer.

    torchvision runs the branches only in training; here they also run in evaluation, so that "aux1" and "aux2" can be
    tapped. The output (B, 1024, 1, 1) of a branch is the input of the 1000-class layer in torchvision, without its
    dropout.

    >>> BranchedGoogLeNet().eval()(torch.zeros(1, 3, 64, 64)).shape
    torch.Size([1, 1024])
    """

    def __init__(self) -> None:
        super().__init__(aux_logits=True, transform_input=False, init_weights=False)
        self.fc = self.dropout = nn.Identity()
        for branch in (self.aux1, self.aux2):
            branch.dropout = nn.Identity()
            branch.fc2 = nn.Unflatten(1, (1024, 1, 1))  # heads embed maps, and this one has one cell

    def forward(self, images: Tensor) -> Tensor:
        """Compute pooled features (B, 1024) of images (B, 3, H, W)."""
        maps = images
        for name in LAYERS:
            maps = self.get_submodule(name)(maps)
            if branch := BRANCHES.get(name):
                self.get_submodule(branch)(maps)
        return torch.flatten(self.avgpool(maps), 1)

    @property
    def has_trained_branches(self) -> bool:
        """Tell whether the branches were trained; otherwise the running means of batch normalisation are 0."""
        norms = [module for branch in (self.aux1, self.aux2) for module in branch.modules()]
        means = [norm.running_mean for norm in norms if isinstance(norm, nn.BatchNorm2d)]
        return all(mean is not None and bool(mean.any()) for mean in means)
