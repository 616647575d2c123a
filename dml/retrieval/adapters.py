"""Maps from the vectors of one model to those of another, fitted on pairs of vectors of the same images.

Both sides are L2-normalized, the means of the pairs are subtracted, the map is fitted and applied, the mean of the
target is added, and the result is normalized again.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import gelu

from dml.retrieval.rows import Embeddings
from dml.runtime.checksums import DamageError, check_zip
from dml.runtime.errors import InputError

logger = logging.getLogger(__name__)

Floats = NDArray[np.float64]

HELD_OUT = 0.2
"""Share of the pairs on which the ridge and the end of the training are chosen."""
RIDGES = np.logspace(-5, 2, 15)
"""The tried ridges, relative to the mean over the source's dimensions of their sums of squares."""
HIDDEN, BATCH, EPOCHS, PATIENCE, LEARNING_RATE = 128, 256, 200, 10, 1e-3


@dataclass(frozen=True)
class Adapter:
    """A map from unit vectors of a source space to unit vectors of a target space.

    Args:
        kind: name of the map: "procrustes", "affine" or "mlp".
        arrays: float64 arrays by name: ``source_mean`` (D,), ``target_mean`` (E,) and ``matrix`` (D, E); of an MLP also
            ``hidden`` (D, H), ``hidden_bias`` (H,) and ``output`` (H, E).
        pairs: hash of the pairs that the map was fitted on.
        source: fingerprint of the model of the source space; "" if unknown.
        target: fingerprint of the model of the target space; "" if unknown.
    """

    kind: str
    arrays: Mapping[str, Floats] = field(repr=False)
    pairs: str = ""
    source: str = ""
    target: str = ""

    @property
    def matrix(self) -> Floats:
        """The linear map (D, E)."""
        return self.arrays["matrix"]

    @cached_property
    def _floats(self) -> tuple[NDArray[np.float32], ...]:
        """The map and the first layer side by side (D, E + H), their bias with the means in it, and the second layer.

        So a query takes two products, whose time is that of reading the weights.
        """
        arrays = self.arrays
        first = np.hstack([self.matrix, arrays.get("hidden", self.matrix[:, :0])])
        bias = np.hstack([arrays["target_mean"], arrays.get("hidden_bias", [])])
        parts = first, bias - arrays["source_mean"] @ first, arrays.get("output", np.empty(0))
        return tuple(np.ascontiguousarray(part, np.float32) for part in parts)

    def __call__(self, vectors: Embeddings) -> NDArray[np.float32]:
        """Map vectors (Q, D) of the source space -> (Q, E) float32 unit vectors of the target space.

        Raises:
            InputError: if the vectors have another size, or a number in them is NaN or infinite.
        """
        first, bias, output = self._floats
        unit = _unit(vectors, "vectors").astype(np.float32)
        if unit.shape[1] != len(first):
            raise InputError(f"vectors of {unit.shape[1]} dimensions: the adapter takes those of {len(first)}")
        mapped = unit @ first + bias
        if len(output):  # after GELU in the form with tanh, as in the training
            mapped, hidden = mapped[:, : output.shape[1]], mapped[:, output.shape[1] :]
            hidden *= 0.5 * (1 + np.tanh((2 / np.pi) ** 0.5 * hidden * (1 + 0.044715 * hidden * hidden)))
            mapped = mapped + hidden @ output
        return _unit(mapped, "mapped vectors").astype(np.float32)

    def save(self, path: Path) -> None:
        """Write the adapter to a .npz file, which `read` opens."""
        texts = np.array([self.kind, self.pairs, self.source, self.target])
        arrays: dict[str, Any] = {**self.arrays, "texts": texts}
        with path.open("wb") as file:
            np.savez(file, **arrays)

    @classmethod
    def read(cls, path: Path) -> "Adapter":
        """Open an adapter that `save` wrote; the file can't run code, and one that is damaged is an `InputError`."""
        try:
            check_zip(path)
            with np.load(path, allow_pickle=False) as stored:
                values = {name: stored[name] for name in stored.files}
            kind, *texts = values.pop("texts").tolist()
            adapter = cls(kind, values, *texts)
            adapter(np.ones((1, len(adapter.matrix))))  # arrays of other shapes, or NaN, raise an error here
        except (DamageError, ValueError, TypeError, KeyError, IndexError) as error:
            raise InputError(f"{path}: no adapter that can be read ({error}); upgrade the index again") from error
        return adapter


def solve_procrustes(source: Floats, target: Floats) -> tuple[Floats, Floats]:
    """Find the Q (D, E) with orthonormal rows or columns that maximizes trace(Q' X' Y) -> Q, and the singular values.

    With X' Y = U S V' (thin SVD), Q = U V' (Schönemann, 1966), for X (N, D) and Y (N, E). For D <= E it minimizes the
    Frobenius norm of X Q - Y, and keeps inner products; for D > E it does neither. The determinant may be -1.
    """
    left, singular_values, right = np.linalg.svd(source.T @ target, full_matrices=False)
    return left @ right, singular_values


def solve_ridge(source: Floats, target: Floats, ridge: float) -> Floats:
    """Compute W (D, E) = (X' X + ridge I)^-1 X' Y of X (N, D) and Y (N, E); of ridge 0 the shortest solution."""
    if not ridge:
        return np.asarray(np.linalg.pinv(source) @ target)
    return np.asarray(np.linalg.solve(source.T @ source + ridge * np.eye(source.shape[1]), source.T @ target))


def fit_procrustes(source: Embeddings, target: Embeddings, *, center: bool = True) -> Adapter:
    """Fit a rotation or reflection from one space to another: orthogonal Procrustes, see `solve_procrustes`.

    A warning tells of fewer independent pairs than dimensions: then other maps fit them as well.

    Args:
        source: (N, D) vectors of the images by the model whose vectors will be mapped.
        target: (N, E) vectors of the same images by the other model.
        center: whether to subtract the means of both sides before, and to add that of the target after.

    Raises:
        InputError: if the pairs can't be used, or are all the same.
    """
    x, y, make_adapter = _prepare(source, target, center)
    matrix, singular_values = solve_procrustes(x, y)
    independent = int((singular_values > 1e-12 * max(1.0, singular_values[0])).sum())
    if not independent:
        raise InputError(f"adapter=procrustes: {len(x)} pairs are all the same; give pairs of different images")
    if independent < len(singular_values):
        count = len(singular_values)
        logger.warning("adapter=procrustes: %d independent pairs for %d dimensions; give more", independent, count)
    return make_adapter("procrustes", matrix=matrix)


def fit_affine(source: Embeddings, target: Embeddings, *, ridge: float | None = None) -> Adapter:
    """Fit an affine map from one space to another by ridge regression, see `solve_ridge`; the bias isn't penalized.

    It may stretch the space, which changes the ranking among mapped vectors. The arguments are those of
    `fit_procrustes`, and ``ridge``, the penalty of the squared entries; None chooses it on a fifth of the pairs.
    """
    x, y, make_adapter = _prepare(source, target)
    return make_adapter("affine", matrix=solve_ridge(x, y, _choose_ridge(x, y) if ridge is None else ridge))


def _choose_ridge(x: Floats, y: Floats) -> float:
    """Return the ridge whose map of the other pairs has the least squared error on the held-out ones."""
    fitted, held_out = _split(len(x))
    ridges = ((x**2).sum() / x.shape[1] or 1.0) * RIDGES
    errors = [((x[held_out] @ solve_ridge(x[fitted], y[fitted], r) - y[held_out]) ** 2).sum() for r in ridges]
    return float(ridges[np.argmin(errors)])


def fit_mlp(source: Embeddings, target: Embeddings, *, seed: int = 0) -> Adapter:
    """Fit the affine map of `fit_affine`, and a network with 128 hidden units (GELU) for what it leaves.

    A residual MLP as in Drift-Adapter (arXiv 2509.23471), trained with the mean squared error by Adam. It keeps the
    weights with the least error on a fifth of the pairs, at first those of the affine map alone. The same seed and
    pairs give the same adapter on the same machine. The arguments and errors are those of `fit_affine`.
    """
    x, y, make_adapter = _prepare(source, target)
    fitted, held_out = _split(len(x))
    matrix = solve_ridge(x[fitted], y[fitted], _choose_ridge(x, y))
    inputs, rests = (torch.from_numpy(part.astype(np.float32)) for part in (x, y - x @ matrix))
    generator = torch.Generator().manual_seed(seed)
    first = torch.randn(x.shape[1], HIDDEN, generator=generator) * (2 / x.shape[1]) ** 0.5
    weights = [first, torch.zeros(HIDDEN), torch.zeros(HIDDEN, y.shape[1])]
    optimizer = torch.optim.Adam([weight.requires_grad_() for weight in weights], lr=LEARNING_RATE)

    def compute_error(rows: Any) -> torch.Tensor:
        hidden = gelu(inputs[rows] @ weights[0] + weights[1], approximate="tanh")
        return torch.nn.functional.mse_loss(hidden @ weights[2], rests[rows])

    best, best_error, best_epoch = [], float("inf"), 0
    for epoch in range(EPOCHS + 1):
        if (error := float(compute_error(held_out).detach())) < best_error:
            best, best_error, best_epoch = [weight.detach().double().numpy() for weight in weights], error, epoch
        if epoch - best_epoch >= PATIENCE:
            break
        order = fitted[torch.randperm(len(fitted), generator=generator).numpy()]
        for start in range(0, len(order), BATCH):
            with torch.enable_grad():
                optimizer.zero_grad()
                compute_error(order[start : start + BATCH]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return make_adapter("mlp", matrix=matrix, hidden=best[0], hidden_bias=best[1], output=best[2])


FITS: dict[str, Callable[..., Adapter]] = {"procrustes": fit_procrustes, "affine": fit_affine, "mlp": fit_mlp}
"""The functions that fit an adapter, by its kind."""


def _prepare(
    source: Embeddings, target: Embeddings, center: bool = True
) -> tuple[Floats, Floats, Callable[..., Adapter]]:
    """Check, L2-normalize and perhaps center pairs -> X (N, D), Y (N, E), and what makes an adapter."""
    if len(source) != len(target) or len(source) < 2:
        raise InputError(f"pairs: {len(source)} source and {len(target)} target vectors; give as many, two or more")
    x, y = _unit(source, "source"), _unit(target, "target")
    digest = sha256(x.tobytes() + y.tobytes()).hexdigest()[:16]
    x_mean, y_mean = x.mean(axis=0) * center, y.mean(axis=0) * center
    means = {"source_mean": x_mean, "target_mean": y_mean}
    return x - x_mean, y - y_mean, lambda kind, **arrays: Adapter(kind, means | arrays, digest)


def _split(count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw the rows of the pairs to fit, and of those that are held out."""
    held_out = max(1, round(HELD_OUT * count))
    order = np.random.default_rng(0).permutation(count)
    return order[held_out:], order[:held_out]


def _unit(vectors: Embeddings, name: str) -> Floats:
    """L2-normalize vectors (N, D); those of zeros stay zero."""
    array = vectors.detach().cpu().numpy() if isinstance(vectors, torch.Tensor) else np.asarray(vectors)
    if array.ndim != 2 or not array.size or not np.isfinite(array).all():
        raise InputError(f"{name}: of shape {array.shape}; expected (N, D) with N, D >= 1, of finite numbers")
    floats: Floats = array.astype(np.float64)
    floats /= np.maximum(np.linalg.norm(floats, axis=1, keepdims=True), np.finfo(np.float64).tiny)
    return floats
