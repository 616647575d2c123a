"""The networks that a configuration can name; each function returns a `Backbone` without its classifier.

``weights`` is for all of them ``packaged`` (carried by an installed package), ``download`` (the library's own,
cached by it), the path of a state_dict file, or None for random ones.
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
    """Any timm model by name; ``settings`` go to `Backbone`.

    Raises:
        InputError: if timm has no such model, or the weights can't be had.
    """
    if not timm.is_model(name):
        nearest = get_close_matches(name, timm.list_models(), n=8, cutoff=0.0)
        raise InputError(f"model.backbone.name={name}: timm has no such model; nearest: {', '.join(nearest)}")
    try:
        network: Any = timm.create_model(name, pretrained=weights == "download")
    except OSError as error:
        raise _no_network(name, error) from error
    except RuntimeError as error:  # timm knows no such tag, or no weights of this model
        raise InputError(f"model.backbone.name={name}: {error}") from error
    config = network.pretrained_cfg
    classifier = config.get("classifier") or ()
    ignore = tuple(f"{key}." for key in ([classifier] if isinstance(classifier, str) else classifier))
    _load(network, name, weights, ignore)
    network.reset_classifier(0)
    stages = [stage["module"] for stage in network.feature_info]
    return Backbone(network, **{"mean": config["mean"], "std": config["std"], "stages": stages, **settings})


def resnet(name: str, weights: str | None = None, **settings: Any) -> Backbone:
    """torchvision's ResNets, "resnet18" to "resnet152" (He et al., 2016); ``download`` takes IMAGENET1K_V1."""
    network = _torchvision(name, weights)
    if not isinstance(network, torchvision.models.ResNet):
        raise InputError(f"model.backbone.name={name}: not one of torchvision's ResNets, such as resnet50")
    _load(network, name, weights, ignore=("fc.",))
    network.fc = nn.Identity()
    return Backbone(network, **{**IMAGENET, **settings})


def googlenet(weights: str | None = None, **settings: Any) -> Backbone:
    """torchvision's GoogLeNet (Szegedy et al., 2015) without its auxiliary classifiers.

    Its weights come from TensorFlow and expect pixels from -1 to 1, so mean and standard deviation are 0.5.
    """
    options = {} if weights == "download" else {"aux_logits": False, "init_weights": False}
    network = _torchvision("googlenet", weights, transform_input=False, **options)
    _load(network, "googlenet", weights, ignore=("fc.", "aux1.", "aux2."))
    network.fc = nn.Identity()
    return Backbone(network, **{"mean": (0.5,) * 3, "std": (0.5,) * 3, **settings})


def branched_googlenet(weights: str | None = None, **settings: Any) -> Backbone:
    """torchvision's GoogLeNet with its auxiliary branches, which "aux1" and "aux2" tap; see `BranchedGoogLeNet`.

    A file's branches are loaded where it has them. Those of torchvision's own file, which ``download`` takes too, were
    never trained: a warning says so, and they begin at random.
    """
    network = BranchedGoogLeNet()
    if weights == "download":
        whole = _torchvision("googlenet", weights, transform_input=False)
        load_state_dict(network, whole.state_dict(), source="download", ignore=(*LAST_LAYERS, *BRANCH_WEIGHTS))
    elif weights == "packaged":
        load_packaged(network, "googlenet")
    elif weights is not None:
        has_branches = any(key.startswith(BRANCH_WEIGHTS) for key in read_state_dict(weights))
        load_file(network, weights, ignore=LAST_LAYERS if has_branches else (*LAST_LAYERS, *BRANCH_WEIGHTS))
    if weights is not None and not network.has_trained_branches:
        logger.warning(
            "model.backbone.weights=%s: its auxiliary branches were never trained; heads L and M begin at random",
            weights,
        )
    return Backbone(network, **{"mean": (0.5,) * 3, "std": (0.5,) * 3, **settings})


def bn_inception(weights: str | None = None, **settings: Any) -> Backbone:
    """BN-Inception, RLL's "GoogLeNet V2"; the usual weights file takes BGR pixels from 0 to 255."""
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
    pretrained = "IMAGENET1K_V1" if weights == "download" else None
    try:
        return torchvision.models.get_model(name, weights=pretrained, **options)
    except OSError as error:
        raise _no_network(name, error) from error
    except ValueError as error:
        raise InputError(f"model.backbone.name={name}: {error}") from error


def _load(network: nn.Module, name: str, weights: str | None, ignore: tuple[str, ...]) -> None:
    if weights == "packaged":
        load_packaged(network, name)
    elif weights not in (None, "download"):
        load_file(network, str(weights), ignore=ignore)


def _no_network(name: str, error: OSError) -> InputError:
    reason = str(error).splitlines()[0][:120]
    return InputError(
        f"model.backbone.weights=download: the weights of {name} could not be fetched ({reason}); "
        "with no network give model.backbone.weights=/path/to/file.pth"
    )
