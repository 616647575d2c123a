"""Functions that build the networks a configuration can name; each returns a `Backbone` without a classifier.

Every function takes ``weights``, which is one of

- ``packaged``: weights that an installed Python package contains,
- ``download``: weights that timm or torchvision downloads and caches,
- the path of a state_dict file, or of BN-Inception's .caffemodel file,
- None: random weights.
"""

import logging
from collections.abc import Sequence
from pickle import UnpicklingError
from typing import Any

import torch
import torchvision
from torch import Tensor, nn
from torchvision.models import GoogLeNet

from dml.models.backbone import Backbone
from dml.models.bn_inception import BNInception
from dml.models.weights import load_file, load_packaged, load_state_dict, read_state_dict
from dml.runtime.errors import InputError, check_number, suggest
from dml.runtime.imports import hidden

logger = logging.getLogger(__name__)

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
        """Tell whether the branches were trained; otherwise the running means of batch normalization are 0."""
        norms = [module for branch in (self.aux1, self.aux2) for module in branch.modules()]
        means = [norm.running_mean for norm in norms if isinstance(norm, nn.BatchNorm2d)]
        return all(mean is not None and bool(mean.any()) for mean in means)


IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


def describe_timm_model(name: str) -> str:
    """Return the end of an error line about a name that is no choice of conf/model: what chooses timm's model of it."""
    with hidden("wandb"):
        import timm  # late, as below

    return f"; model=timm model.backbone.name={name} takes timm's" if timm.is_model(name) else ""


def timm_backbone(
    name: str,
    weights: str | None = None,
    *,
    any_size: bool = False,
    drop_path_rate: float = 0.0,
    freeze_patch_embedding: bool = False,
    **settings: Any,
) -> Backbone:
    """Build a timm model by name.

    >>> timm_backbone("resnet18").stages
    ('act1', 'layer1', 'layer2', 'layer3', 'layer4')

    Args:
        any_size: whether a transformer takes images of any size. It keeps the position embeddings at the size of the
            weights, and resamples them in each forward pass, so that weights of runs with other sizes fit. Without
            this, `Backbone.fit_image_size` fits the network to one size.
        drop_path_rate: probability with which the residual branches of the last block are left out of a training step
            (stochastic depth); it grows linearly from 0 at the first block.
        freeze_patch_embedding: whether the convolution that makes tokens of the pixels keeps its weights.
    """
    check_number("model.backbone.drop_path_rate", drop_path_rate, least=0, most=1)
    with hidden("wandb"):
        import timm  # late: it takes seconds

    if not timm.is_model(name):
        raise InputError(f"model.backbone.name={name}: timm has no such model{suggest(name, timm.list_models())}")
    options: dict[str, Any] = {"dynamic_img_size": True, "dynamic_img_pad": True} if any_size else {}
    if drop_path_rate:
        options["drop_path_rate"] = drop_path_rate
    try:
        _reach_hub(timm.get_pretrained_cfg(name), weights)
        network: Any = timm.create_model(name, pretrained=weights == "download", **options)
    except OSError as error:
        raise _download_error(name, error) from error
    except (RuntimeError, TypeError) as error:  # timm has no such tag or weights, or the network takes no such option
        raise InputError(f"model.backbone.name={name}: {error}") from error
    config = network.pretrained_cfg
    classifier = config.get("classifier") or ()
    ignore = tuple(f"{key}." for key in ([classifier] if isinstance(classifier, str) else classifier))
    _load(network, name, weights, ignore)
    network.reset_classifier(0)
    if freeze_patch_embedding:
        first = config["first_conv"]  # one submodule, or several
        for path in [first] if isinstance(first, str) else first:
            network.get_submodule(path).requires_grad_(False)
    stages = [stage["module"] for stage in network.feature_info]
    stated = {"mean": config["mean"], "std": config["std"], "stages": stages, "layers": number_layers(network, stages)}
    return Backbone(network, **{**stated, **settings})


def number_layers(network: Any, stages: Sequence[str]) -> dict[str, int]:
    """Return the number of the layer of each parameter of a timm model by name.

    The result is {} if timm doesn't order the layers. A transformer's layer 0 is the patch embedding with the positions
    and the prefix tokens, and layer i + 1 is block i. The layers behind the last stage, such as the final norm, have
    the number of the last layer of that stage.

    >>> import timm
    >>> network = timm.create_model("vit_tiny_patch16_224", num_classes=0, depth=2)
    >>> layers = number_layers(network, ["blocks.0", "blocks.1"])
    >>> layers["cls_token"], layers["blocks.0.norm1.weight"], layers["blocks.1.norm1.weight"], layers["norm.weight"]
    (0, 1, 2, 2)
    """
    if not hasattr(network, "group_matcher"):
        return {}
    from timm.models import group_parameters

    numbers = group_parameters(network, network.group_matcher(coarse=False), reverse=True)
    in_last_stage = [number for name, number in numbers.items() if name.startswith(f"{stages[-1]}.")]
    last = max(in_last_stage or numbers.values())
    return {name: min(int(number), last) for name, number in numbers.items()}


def resnet(name: str, weights: str | None = None, **settings: Any) -> Backbone:
    """Build a ResNet of torchvision (He et al., 2016), such as "resnet50"; ``download`` takes IMAGENET1K_V1.

    >>> resnet("resnet18")(torch.zeros(2, 3, 32, 32))[0].shape
    torch.Size([2, 512])
    """
    network = _torchvision(name, weights)
    if not isinstance(network, torchvision.models.ResNet):
        raise InputError(f"model.backbone.name={name}: must be one of torchvision's ResNets, such as resnet50")
    _load(network, name, weights, ignore=("fc.",))
    network.fc = nn.Identity()
    return Backbone(network, **{**IMAGENET, "layers": number_residual_blocks(network), **settings})


def number_residual_blocks(network: nn.Module) -> dict[str, int]:
    """Return the number of the layer of each parameter of a ResNet of torchvision by name; the stem is layer 0.

    >>> layers = number_residual_blocks(torchvision.models.resnet18())
    >>> layers["conv1.weight"], layers["layer1.0.bn1.bias"], layers["layer4.1.conv2.weight"]
    (0, 1, 8)
    """
    kinds = torchvision.models.resnet.BasicBlock, torchvision.models.resnet.Bottleneck
    blocks = [f"{name}." for name, module in network.named_modules() if isinstance(module, kinds)]
    numbers = {block: number for number, block in enumerate(blocks, start=1)}
    names = [name for name, _ in network.named_parameters()]
    return {name: next((numbers[block] for block in blocks if name.startswith(block)), 0) for name in names}


def googlenet(weights: str | None = None, **settings: Any) -> Backbone:
    """Build torchvision's GoogLeNet (Szegedy et al., 2015) without the auxiliary classifiers.

    torchvision's weights were converted from TensorFlow and expect pixels from -1 to 1. Mean and standard deviation
    are therefore 0.5.

    >>> googlenet()(torch.zeros(2, 3, 32, 32))[0].shape
    torch.Size([2, 1024])
    """
    options = {} if weights == "download" else {"aux_logits": False, "init_weights": False}
    network = _torchvision("googlenet", weights, transform_input=False, **options)
    _load(network, "googlenet", weights, ignore=("fc.", "aux1.", "aux2."))
    network.fc = nn.Identity()
    return Backbone(network, **{"mean": (0.5,) * 3, "std": (0.5,) * 3, **settings})


def branched_googlenet(weights: str | None = None, **settings: Any) -> Backbone:
    """Build torchvision's GoogLeNet with both auxiliary branches, which can be tapped as "aux1" and "aux2".

    torchvision's own weights, which ``download`` gives too, contain no trained branches. Untrained branches cause a
    warning. See `BranchedGoogLeNet`.

    >>> backbone = branched_googlenet()
    >>> backbone.tap({"L": "aux1"})
    >>> backbone(torch.zeros(2, 3, 32, 32))[1]["L"].shape
    torch.Size([2, 1024, 1, 1])
    """
    network = BranchedGoogLeNet()
    if weights == "download":
        pretrained = _torchvision("googlenet", weights, transform_input=False)
        load_state_dict(network, pretrained.state_dict(), source="download", ignore=(*LAST_LAYERS, *BRANCH_WEIGHTS))
    elif weights == "packaged":
        load_packaged(network, "googlenet")
    elif weights is not None:
        has_branches = any(key.startswith(BRANCH_WEIGHTS) for key in read_state_dict(weights))
        load_file(network, weights, ignore=LAST_LAYERS if has_branches else (*LAST_LAYERS, *BRANCH_WEIGHTS))
    if weights is not None and not network.has_trained_branches:
        logger.warning(
            "model.backbone.weights=%s: the auxiliary branches of these weights were never trained; the branches that "
            "heads L and M tap begin with random weights",
            weights,
        )
    return Backbone(network, **{"mean": (0.5,) * 3, "std": (0.5,) * 3, **settings})


def bn_inception(weights: str | None = None, *, branches: bool = False, **settings: Any) -> Backbone:
    """Build BN-Inception, which RLL calls "GoogLeNet V2"; see `BNInception` for its weights files and its branches.

    >>> bn_inception()(torch.zeros(2, 3, 32, 32))[0].shape
    torch.Size([2, 1024])
    """
    if weights == "download":
        raise InputError(
            "model.backbone.weights=download: no library offers BN-Inception's weights; "
            "give the path of bn_inception-52deb4733.pth or googlenet_bn.caffemodel, or null"
        )
    network = BNInception(num_classes=0, branches=branches)
    classifiers = ("last_linear.", *(f"loss{number}_classifier." for number in (1, 2, 3)))
    _load(network, "bn_inception", weights, ignore=classifiers if branches else (*classifiers, "loss1_", "loss2_"))
    caffe = {"mean": (104.0, 117.0, 128.0), "std": (1.0,) * 3, "scale": 1.0, "channels": "bgr"}
    return Backbone(network, **{**caffe, **settings})


def _torchvision(name: str, weights: str | None, **options: Any) -> Any:
    pretrained = "IMAGENET1K_V1" if weights == "download" else None
    try:
        return torchvision.models.get_model(name, weights=pretrained, **options)
    except OSError as error:
        raise _download_error(name, error) from error
    except (RuntimeError, EOFError, UnpicklingError) as error:
        if weights != "download":
            raise
        raise InputError(
            f"model.backbone.weights=download: the file of {name} in {torch.hub.get_dir()}/checkpoints can't be read; "
            "delete it, and the same command fetches it again"
        ) from error


def _reach_hub(settings: Any, weights: str | None) -> None:
    """Fail at once without a connection to the hub whose weights shall be downloaded; timm would try for a minute."""
    from huggingface_hub import snapshot_download  # late, as timm

    if weights == "download" and (repository := getattr(settings, "hf_hub_id", None)):
        snapshot_download(repository, allow_patterns=[])


def _load(network: nn.Module, name: str, weights: str | None, ignore: tuple[str, ...]) -> None:
    """Load packaged weights or those of a file; random and downloaded weights are in the network already."""
    if weights == "packaged":
        load_packaged(network, name)
    elif weights not in (None, "download"):
        load_file(network, str(weights), ignore=ignore)


def _download_error(name: str, error: OSError) -> InputError:
    reason = str(error).splitlines()[0][:120]
    return InputError(
        f"model.backbone.weights=download: the weights of {name} could not be fetched ({reason}); "
        "without a connection use model.backbone.weights=/path/to/file.pth"
    )
