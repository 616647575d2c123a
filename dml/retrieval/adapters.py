"""Maps from the vectors of one model to those of another, fitted on pairs of vectors of the same images.

Both sides are L2-normalized, the means of the pairs are subtracted, the map is fitted and applied, the mean of the
target is added, and the result is normalized again.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dml.retrieval.rows import Embeddings
from dml.runtime.errors import InputError
from dml.runtime.reading import DamageError, check_zip

logger = logging.getLogger(__name__)

Floats = NDArray[np.float64]

RIDGES = np.logspace(-5, 2, 15)
"""The tried ridges, relative to the mean over the source's dimensions of their sums of squares."""


@dataclass(frozen=True)
class Adapter:
    """A map from unit vectors of a source space to unit vectors of a target space."""

    kind: str  # "procrustes" or "affine"
    matrix: Floats = field(repr=False)  # (D, E) float64
    bias: Floats = field(repr=False)  # (E,) float64, added to the mapped unit vectors
    source: str = ""  # fingerprint of the model of the source space; "" if unknown
    target: str = ""  # fingerprint of the model of the target space; "" if unknown

    def __call__(self, vectors: Embeddings) -> NDArray[np.float32]:
        """Map vectors (Q, D) of the source space -> (Q, E) float32 unit vectors of the target space."""
        unit = _unit(vectors, "vectors").astype(np.float32)
        mapped = unit @ self.matrix.astype(np.float32) + self.bias.astype(np.float32)
        return _unit(mapped, "mapped vectors").astype(np.float32)

    def save(self, path: Path) -> None:
        """Write the adapter to a .npz file, which `read` opens."""
        with path.open("wb") as file:
            np.savez(file, matrix=self.matrix, bias=self.bias, texts=np.array([self.kind, self.source, self.target]))

    @classmethod
    def read(cls, path: Path) -> "Adapter":
        """Open an adapter that `save` wrote; the file can't run code, and one that is damaged is an `InputError`."""
        try:
            check_zip(path)
            with np.load(path, allow_pickle=False) as stored:
                kind, source, target = stored["texts"].tolist()
                adapter = cls(kind, stored["matrix"], stored["bias"], source, target)
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


def fit_procrustes(source: Embeddings, target: Embeddings, *, center: bool = True) -> Adapter:
    """Fit a rotation or reflection from vectors (N, D) of images to those (N, E) of another model: `solve_procrustes`.

    A warning tells of fewer independent pairs than dimensions: then other maps fit them as well. With ``center`` the
    means of both sides are subtracted before, and that of the target is added after.
    """
    x, y = _check_pairs(source, target)
    x_mean, y_mean = x.mean(axis=0) * center, y.mean(axis=0) * center
    matrix, singular_values = solve_procrustes(x - x_mean, y - y_mean)
    independent, count = int((singular_values > 1e-12 * max(1.0, singular_values[0])).sum()), len(singular_values)
    if not independent:
        raise InputError(f"adapter=procrustes: {len(x)} pairs are all the same; give pairs of different images")
    if independent < count:
        logger.warning("adapter=procrustes: %d independent pairs for %d dimensions; give more", independent, count)
    return Adapter("procrustes", matrix, y_mean - x_mean @ matrix)


def fit_affine(source: Embeddings, target: Embeddings, *, ridge: float | None = None) -> Adapter:
    """Fit an affine map from one space to another by scikit-learn's ridge regression; the bias isn't penalized.

    It may stretch the space, which changes the ranking among mapped vectors. ``ridge`` is the penalty of the squared
    entries, above 0; None takes that of `RIDGES` that predicts a pair best which the regression leaves out.
    """
    from sklearn.linear_model import RidgeCV  # late: it takes a second

    x, y = _check_pairs(source, target)
    x_mean = x.mean(axis=0)
    scale = ((x - x_mean) ** 2).sum() / x.shape[1] or 1.0
    fitted = RidgeCV(scale * RIDGES if ridge is None else [ridge], fit_intercept=False)
    matrix = fitted.fit(x - x_mean, y - y.mean(axis=0)).coef_.T
    return Adapter("affine", matrix, y.mean(axis=0) - x_mean @ matrix)


FITS: dict[str, Callable[..., Adapter]] = {"procrustes": fit_procrustes, "affine": fit_affine}
"""The functions that fit an adapter, by its kind."""


def _check_pairs(source: Embeddings, target: Embeddings) -> tuple[Floats, Floats]:
    """Check and L2-normalize pairs -> X (N, D), Y (N, E)."""
    if len(source) != len(target) or len(source) < 2:
        raise InputError(f"pairs: {len(source)} source and {len(target)} target vectors; give as many, two or more")
    return _unit(source, "source"), _unit(target, "target")


def _unit(vectors: Embeddings, name: str) -> Floats:
    """L2-normalize vectors (N, D); those of zeros stay zero."""
    array: Any = vectors.detach().cpu().numpy() if isinstance(vectors, torch.Tensor) else np.asarray(vectors)
    if array.ndim != 2 or not array.size or not np.isfinite(array).all():
        raise InputError(f"{name}: of shape {array.shape}; expected (N, D) with N, D >= 1, of finite numbers")
    floats: Floats = array.astype(np.float64)
    floats /= np.maximum(np.linalg.norm(floats, axis=1, keepdims=True), np.finfo(np.float64).tiny)
    return floats
