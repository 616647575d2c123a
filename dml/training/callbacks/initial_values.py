"""First values of heads and proxies that the training images give, in place of random numbers."""

from copy import deepcopy
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from pytorch_lightning import Callback, Trainer
from torch import Tensor, nn

from dml.evaluation.evaluator import evaluate
from dml.evaluation.raw_features import hold_out_classes
from dml.losses.distillation import find_wanted_vectors
from dml.losses.proxies import begin_at_class_means, count_classes, proxy_sets
from dml.models.embedding import EmbeddingModel
from dml.retrieval.adapters import RIDGES
from dml.runtime.errors import InputError
from dml.training.callbacks.embedding_bank import embed_training_images, get_training_data

SMALLEST_SHARE = 1e-5
"""The root mean square of a component, as a share of the largest, below which float32 inputs hold rounding alone."""
SHARES = (0.25, 0.5)
"""The shares of the whitening among which `choose_whitening` chooses."""


def last_layers(heads: nn.ModuleDict) -> dict[str, nn.Linear]:
    """Return the linear layer by which a head ends, its attribute ``embedding``, by head; others have none."""
    layers = {name: getattr(head, "embedding", None) for name, head in heads.items()}
    return {name: layer for name, layer in layers.items() if isinstance(layer, nn.Linear)}


@torch.no_grad()
def begin_at_principal_components(layer: nn.Linear, inputs: Tensor, whitening: float = 0.0) -> None:
    """Set a linear layer to the principal components of the directions of its inputs (N, C).

    Without whitening, it then changes the inner products of the L2-normalized inputs least of all layers of this size
    (Eckart and Young, 1936), so that an untrained head finds nearly what its inputs find. With whitening, components
    along which the inputs vary much count for less, and an untrained head often finds more: a component is divided by
    its root mean square to the power ``whitening``; 1 gives all components the same root mean square.

    The components are those of the inputs about 0, as cosine similarities are. The weights keep their norm, which
    decides how fast a learning rate turns them; a bias becomes 0. If there are more outputs than components, the other
    rows keep the part of their weights that is orthogonal to all components, and else become 0.
    """
    unit = _compute_directions(inputs)
    from sklearn.decomposition import TruncatedSVD  # late: it takes a second, and models in use need none

    decomposition = TruncatedSVD(min(layer.out_features, *unit.shape), random_state=0).fit(unit)
    sizes, weight = decomposition.singular_values_, layer.weight.float()  # in 16 bits there is no QR decomposition
    scales = np.where(sizes > SMALLEST_SHARE * sizes[0], np.maximum(sizes, SMALLEST_SHARE * sizes[0]) ** -whitening, 0)
    components = torch.from_numpy(scales[:, None] * decomposition.components_).to(weight)
    components = F.pad(components, (0, 0, 0, layer.out_features - len(components)))
    num_components = int((scales > 0).sum())
    if num_components < min(layer.weight.shape):
        free_rows = slice(num_components, layer.in_features)
        directions = torch.from_numpy(decomposition.components_[:num_components]).to(weight)
        norm = components[:num_components].norm(dim=1).min()
        components[free_rows] = norm * _make_orthogonal(weight[free_rows], directions)
    _set_weight(layer, components)


@torch.no_grad()
def begin_at_vectors(layer: nn.Linear, inputs: Tensor, vectors: Tensor) -> None:
    """Set a linear layer to the ridge regression from the directions of its inputs (N, C) to unit vectors (N, D).

    Vectors that are NaN are unknown. The ridge is the one that predicts an image best which the regression leaves out.
    The weights keep their norm.
    """
    from sklearn.linear_model import RidgeCV  # late, as above

    is_known = vectors.isfinite().all(dim=1).cpu()
    unit = _compute_directions(inputs.cpu()[is_known])
    ridges = RIDGES * len(unit) / unit.shape[1]  # relative to the mean sum of squares of an input
    fitted = RidgeCV(ridges, fit_intercept=False).fit(unit, vectors.cpu()[is_known].numpy())
    _set_weight(layer, torch.from_numpy(fitted.coef_).to(layer.weight))


def _compute_directions(inputs: Tensor) -> npt.NDArray[np.float32]:
    unit: npt.NDArray[np.float32] = F.normalize(inputs, dim=1).cpu().numpy()
    if not unit.any():
        raise InputError("heads.initial: the network gives 0 for all images of the training split")
    return unit


def _set_weight(layer: nn.Linear, weight: Tensor) -> None:
    """Set the weights (D, C) of a layer, scaled to the norm that they had, and its bias to 0."""
    layer.weight.copy_(weight * (layer.weight.to(weight.dtype).norm() / weight.norm()))
    if layer.bias is not None:
        layer.bias.zero_()


@torch.no_grad()
def choose_whitening(layer: nn.Linear, inputs: Tensor, labels: npt.NDArray[np.int64]) -> float:
    """Choose the share of the whitening by which held-out classes have the best MAP@R; the largest with few classes.

    Each group of `hold_out_classes` is embedded by the components of the other classes. The layer stays as it is;
    its inputs are (N, C), with classes (N,).
    """
    scores = dict.fromkeys(SHARES, 0.0)
    for is_held in hold_out_classes(labels):
        for share in SHARES:
            trial = deepcopy(layer)
            begin_at_principal_components(trial, inputs[~is_held], share)
            embeddings = trial(inputs[is_held].to(layer.weight))
            scores[share] += evaluate(embeddings, labels[is_held], metrics=("map@r",), clustering=False)["level0/map@r"]
    return max(SHARES, key=lambda share: (scores[share], share))


def _make_orthogonal(rows: Tensor, directions: Tensor) -> Tensor:
    """Return unit vectors orthogonal to each other and to directions; as rows of a layer they can learn, unlike 0."""
    basis: Tensor = torch.linalg.qr((rows - rows @ directions.T @ directions).T).Q
    return basis.T


WHITENING = {
    "auto": None,
    "principal_components": 0.0,
    "half_whitened_components": 0.5,
    "whitened_components": 1.0,
}
"""The share of the whitening by the values of ``heads.initial``; with None, `choose_whitening` chooses it."""


class PrincipalHeads(Callback):
    """Sets the heads' last layers to the principal components of their inputs before the first step of a run.

    A head that learns a teacher's vectors (``distill=embedding``) begins at what predicts them, `begin_at_vectors`. A
    head that doesn't end in a linear layer keeps its weights.

    Args:
        whitening: share of the whitening of the components; None chooses it for each head, see `choose_whitening`.
    """

    def __init__(self, whitening: float | None = None) -> None:
        self.whitening = whitening

    @torch.no_grad()
    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Embed the training images up to the last layers, and set these."""
        model = pl_module.model if isinstance(pl_module.model, EmbeddingModel) else pl_module.model.cnn
        layers = last_layers(model.heads)
        if trainer.global_step or pl_module.run_description.get("first_step") or not layers:
            return
        inputs: dict[str, Tensor] = {}
        hooks = [layer.register_forward_pre_hook(partial(_keep, inputs, name)) for name, layer in layers.items()]

        def compute_inputs(images: Tensor, **_: object) -> dict[str, Tensor]:
            pl_module.embed_images(images)
            return dict(inputs)

        embedded = embed_training_images(trainer, pl_module, compute_inputs)
        for hook in hooks:
            hook.remove()
        labels = get_training_data(trainer).train_table.labels[embedded.rows.numpy(), 0]
        for name, layer in layers.items():
            head_inputs = embedded.embeddings[name]
            if (vectors := find_wanted_vectors(pl_module.losses[name])) is not None:
                begin_at_vectors(layer, head_inputs, vectors[embedded.rows])
            else:
                share = choose_whitening(layer, head_inputs, labels) if self.whitening is None else self.whitening
                begin_at_principal_components(layer, head_inputs, share)
            _take_from_first_process(layer.weight, trainer)


def _keep(inputs: dict[str, Tensor], name: str, _: nn.Module, arguments: tuple[Any, ...]) -> None:
    inputs[name] = arguments[0].float()


def _take_from_first_process(weights: Tensor, trainer: Trainer) -> None:
    """Set weights to those of the first process: each process may round its sums differently."""
    # from the CPU: it is pickled, and a tensor of the first GPU would take all processes there
    weights.copy_(trainer.strategy.broadcast(weights.cpu()))


class ProxiesAtClassMeans(Callback):
    """Sets the proxies of the losses to the mean embeddings of their classes before the first step of a stage.

    See `dml.losses.proxies.begin_at_class_means`.
    """

    @torch.no_grad()
    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Embed the training images and set the proxies, unless the run was resumed."""
        if trainer.global_step:
            return
        all_labels = get_training_data(trainer).train_table.labels
        num_classes, embed_dims = count_classes(all_labels), pl_module.model.embed_dims
        sets = {head: [*proxy_sets(loss, num_classes, embed_dims[head])] for head, loss in pl_module.losses.items()}
        if not any(sets.values()):
            return
        embedded = embed_training_images(trainer, pl_module, pl_module.embed_for_loss)
        labels = torch.from_numpy(all_labels)[embedded.rows]
        for head, head_sets in sets.items():
            begin_at_class_means(head_sets, embedded.embeddings[head], labels)
            for _, proxies in head_sets:
                _take_from_first_process(proxies, trainer)
