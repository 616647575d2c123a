"""Functions that build the networks a configuration can name; each returns a `Backbone` without a classifier.

Every function takes ``weights``, which is one of

- ``packaged``: weights that an installed Python package contains,
- ``download``: weights that timm or torchvision downloads and caches,
- the path of a state_dict file,
- None: random weights.
"""

import logging
from difflib import get_close_matches
from typing import Any

import timm
import torchvision
from torch import nn

from dml.models.backbone import Backbone
from dml.models.bn_inception import BNInception
from dml.models.googlenet import BRANCH_WEIGHTS, LAST_LAYERS, BranchedGoogLeNet
from dml.models.weights import load_file, load_packaged, load_state_dict, read_state_dict
from dml.ops.errors import InputError

logger = logging.getLogger(__name__)

IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


def timm_backbone(name: str, weights: str | None = None, **settings: Any) -> Backbone:
    """Build a timm model by name.

    >>> timm_backbone("resnet18").stages
    ('act1', 'layer1', 'layer2', 'layer3', 'layer4')

    Args:
        name: name of the model in timm.
        weights: see the top of this module.
        settings: arguments of `Backbone`, which replace those that timm states for the weights.

    Raises:
        InputError: if timm has no such model, or the weights can't be loaded.
    """
    if not timm.is_model(name):
        nearest = get_close_matches(name, timm.list_models(), n=8, cutoff=0.0)
        raise InputError(f"model.backbone.name={name}: timm has no such model; nearest: {', '.join(nearest)}")
    try:
        network: Any = timm.create_model(name, pretrained=weights == "download")
    except OSError as error:
        raise _download_error(name, error) from error
    except RuntimeError as error:  # timm has no such tag, or no weights for this model
        raise InputError(f"model.backbone.name={name}: {error}") from error
    config = network.pretrained_cfg
    classifier = config.get("classifier") or ()
    ignore = tuple(f"{key}." for key in ([classifier] if isinstance(classifier, str) else classifier))
    _load(network, name, weights, ignore)
    network.reset_classifier(0)
    stages = [stage["module"] for stage in network.feature_info]
    return Backbone(network, **{"mean": config["mean"], "std": config["std"], "stages": stages, **settings})


def resnet(name: str, weights: str | None = None, **settings: Any) -> Backbone:
    """Build a ResNet of torchvision (He et al., 2016), such as "resnet50".

    >>> import torch
    >>> resnet("resnet18")(torch.zeros(2, 3, 32, 32))[0].shape
    torch.Size([2, 512])

    Args:
        name: name of the model in torchvision.
        weights: see the top of this module; ``download`` takes IMAGENET1K_V1.
        settings: arguments of `Backbone`, which replace those of ImageNet's weights.

    Raises:
        InputError: if torchvision has no such ResNet, or the weights can't be loaded.
    """
    network = _torchvision(name, weights)
    if not isinstance(network, torchvision.models.ResNet):
        raise InputError(f"model.backbone.name={name}: must be one of torchvision's ResNets, such as resnet50")
    _load(network, name, weights, ignore=("fc.",))
    network.fc = nn.Identity()
    return Backbone(network, **{**IMAGENET, **settings})


def googlenet(weights: str | None = None, **settings: Any) -> Backbone:
    """Build torchvision's GoogLeNet (Szegedy et al., 2015) without the auxiliary classifiers.

    torchvision's weights were converted from TensorFlow and expect pixels from -1 to 1. Mean and standard deviation
    are therefore 0.5.

    >>> import torch
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

    If a weights file contains the branches, they are loaded; otherwise they have random weights. torchvision's own
    weights, which ``download`` gives too, contain no trained branches. Untrained branches cause a warning. See
    `BranchedGoogLeNet`.

    >>> import torch
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


def bn_inception(weights: str | None = None, **settings: Any) -> Backbone:
    """Build BN-Inception, which RLL calls "GoogLeNet V2"; see `BNInception` for the weights file.

    >>> import torch
    >>> bn_inception()(torch.zeros(2, 3, 32, 32))[0].shape
    torch.Size([2, 1024])
    """
    if weights == "download":
        raise InputError(
            "model.backbone.weights=download: no library offers BN-Inception's weights; "
            "give the path of bn_inception-52deb4733.pth, or null"
        )
    network = BNInception(num_classes=0)
    _load(network, "bn_inception", weights, ignore=("last_linear.",))
    caffe = {"mean": (104.0, 117.0, 128.0), "std": (1.0,) * 3, "scale": 1.0, "channels": "bgr"}
    return Backbone(network, **{**caffe, **settings})


def _torchvision(name: str, weights: str | None, **options: Any) -> Any:
    """Build a model of torchvision, with its weights if they are to be downloaded."""
    pretrained = "IMAGENET1K_V1" if weights == "download" else None
    try:
        return torchvision.models.get_model(name, weights=pretrained, **options)
    except OSError as error:
        raise _download_error(name, error) from error
    except ValueError as error:
        raise InputError(f"model.backbone.name={name}: {error}") from error


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
