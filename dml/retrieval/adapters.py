"""Maps from the vectors of one model to those of another, fitted on pairs of vectors of the same images.

Both sides are L2-normalized, the means of the pairs are subtracted, the map is fitted and applied, the mean of the
target is added, and the result is normalized again.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dml.retrieval.rows import Embeddings
from dml.runtime.checksums import DamageError, check_zip
from dml.runtime.errors import InputError

logger = logging.getLogger(__name__)

Floats = NDArray[np.float64]

HELD_OUT = 0.2
"""Share of the pairs on which the ridge and the end of the training are chosen."""
FEWEST_PAIRS = 5
"""The smallest number of pairs of which a share can be held out."""
RIDGES = np.logspace(-5, 2, 15)
"""The tried ridges, relative to the mean variance of the source's dimensions, summed over the pairs."""
HIDDEN, BATCH, EPOCHS, PATIENCE, LEARNING_RATE = 256, 256, 200, 10, 1e-3


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
    def _floats(self) -> dict[str, NDArray[np.float32]]:
        return {name: np.ascontiguousarray(array, np.float32) for name, array in self.arrays.items()}

    def __call__(self, vectors: Embeddings) -> NDArray[np.float32]:
        """Map vectors (Q, D) of the source space -> (Q, E) float32 unit vectors of the target space.

        Raises:
            InputError: if the vectors have another size, or a number in them is NaN or infinite.
        """
        arrays = self._floats
        unit: NDArray[np.float32] = _unit(vectors, "vectors", np.float32)
        if unit.shape[1] != len(self.matrix):
            raise InputError(f"vectors of {unit.shape[1]} dimensions: the adapter takes those of {len(self.matrix)}")
        centered = unit - arrays["source_mean"]
        mapped: NDArray[np.float32] = centered @ arrays["matrix"] + arrays["target_mean"]
        if "hidden" in arrays:
            mapped += _gelu(centered @ arrays["hidden"] + arrays["hidden_bias"]) @ arrays["output"]
        scaled: NDArray[np.float32] = _unit(mapped, "mapped vectors", np.float32)
        return scaled

    def save(self, path: Path) -> None:
        """Write the adapter to a .npz file, which `read` opens."""
        texts = {name: np.array(getattr(self, name)) for name in ("kind", "pairs", "source", "target")}
        with path.open("wb") as file:
            np.savez(file, allow_pickle=False, **texts, **self.arrays)

    @classmethod
    def read(cls, path: Path) -> "Adapter":
        """Open an adapter that `save` wrote; the file can't run code.

        Raises:
            InputError: if the file is damaged, or holds something else.
        """
        try:
            check_zip(path)
            with np.load(path, allow_pickle=False) as stored:
                values = {name: stored[name] for name in stored.files}
            texts = {name: str(values.pop(name)) for name in ("kind", "pairs", "source", "target")}
            return cls(arrays=_check_arrays(values), **texts)
        except (DamageError, OSError, ValueError, KeyError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # the disk's
            raise InputError(f"{path}: no adapter that can be read ({error}); upgrade the index again") from error


def _check_arrays(arrays: dict[str, Any]) -> dict[str, Floats]:
    """Make sure that arrays by name are those of an adapter."""
    dimension, size = arrays["matrix"].shape
    shapes: dict[str, tuple[int, ...]] = {
        "source_mean": (dimension,),
        "target_mean": (size,),
        "matrix": (dimension, size),
    }
    if "hidden" in arrays:
        hidden = len(arrays["hidden_bias"])
        shapes |= {"hidden": (dimension, hidden), "hidden_bias": (hidden,), "output": (hidden, size)}
    found = {name: array.shape for name, array in arrays.items() if array.dtype == np.float64}
    if found != shapes or not all(np.isfinite(array).all() for array in arrays.values()):
        raise ValueError(f"arrays {found}, expected finite ones {shapes}")
    return arrays


def solve_procrustes(source: Floats, target: Floats) -> tuple[Floats, Floats]:
    """Find the Q (D, E) with orthonormal rows or columns that maximizes trace(Q' X' Y) -> Q, and the singular values.

    With X' Y = U S V' (thin SVD), Q = U V' (Schönemann, 1966). For D <= E it minimizes the Frobenius norm of X Q - Y,
    and keeps inner products; for D > E it does neither. The determinant may be -1.

    Args:
        source: X (N, D) float64.
        target: Y (N, E) float64, whose rows belong to those of ``source``.
    """
    left, singular_values, right = np.linalg.svd(source.T @ target, full_matrices=False)
    return left @ right, singular_values


def solve_ridge(source: Floats, target: Floats, ridge: float) -> Floats:
    """Compute W (D, E) = (X' X + ridge I)^-1 X' Y of X (N, D) and Y (N, E); of ridge 0 the shortest solution."""
    if not ridge:
        return np.linalg.pinv(source) @ target
    return np.linalg.solve(source.T @ source + ridge * np.eye(source.shape[1]), source.T @ target)


def reduce_rank(source: Floats, matrix: Floats, rank: int) -> Floats:
    """Return the matrix of a rank whose X W is nearest to that of W (D, E): reduced-rank regression (Izenman, 1975)."""
    _, _, right = np.linalg.svd(source @ matrix, full_matrices=False)
    return matrix @ right[:rank].T @ right[:rank]


def fit_procrustes(source: Embeddings, target: Embeddings, *, center: bool = True) -> Adapter:
    """Fit a rotation or reflection from one space to another: orthogonal Procrustes, see `solve_procrustes`.

    Warns if there are fewer independent pairs than dimensions: then other rotations fit them as well.

    >>> points = np.random.default_rng(0).normal(size=(9, 2))
    >>> fit_procrustes(points, points[:, ::-1]).matrix.round(6).tolist()
    [[0.0, 1.0], [1.0, 0.0]]

    Args:
        source: (N, D) vectors of the images by the model whose vectors will be mapped.
        target: (N, E) vectors of the same images by the other model.
        center: whether to subtract the means of both sides before, and to add that of the target after.

    Raises:
        InputError: if the pairs can't be used, or only one direction is in them all.
    """
    pairs = _Pairs.make(source, target, center=center)
    matrix, singular_values = solve_procrustes(pairs.source, pairs.target)
    limit = singular_values[0] * max(matrix.shape) * np.finfo(np.float64).eps if singular_values[0] > 1e-12 else np.inf
    independent = int((singular_values > limit).sum())
    if not independent:
        raise InputError(
            f"adapter=procrustes: {len(pairs.source)} pairs are all the same; give pairs of different images"
        )
    if independent < len(singular_values):
        logger.warning(
            "adapter=procrustes: %d independent pairs for %d dimensions, so other maps fit as well; more are needed",
            independent,
            len(singular_values),
        )
    return pairs.make_adapter("procrustes", matrix=matrix)


def fit_affine(
    source: Embeddings,
    target: Embeddings,
    *,
    ridge: float | None = None,
    rank: int | None = None,
    center: bool = True,
    seed: int = 0,
) -> Adapter:
    """Fit an affine map from one space to another by ridge regression, see `solve_ridge`; the bias isn't penalized.

    It may stretch the space, which changes the ranking among mapped vectors.

    Args:
        source: (N, D) vectors of the images by the model whose vectors will be mapped.
        target: (N, E) vectors of the same images by the other model.
        ridge: penalty of the squared entries; None chooses it on a fifth of the pairs, and fits all pairs with it.
        rank: rank of the matrix, see `reduce_rank`; None for a full one, which needs fewer pairs.
        center: whether to subtract the means of both sides before, and to add that of the target after.
        seed: seed that draws the pairs for the choice of the ridge.

    Raises:
        InputError: if the pairs, the ridge or the rank can't be used.
    """
    pairs = _Pairs.make(source, target, center=center)
    largest = min(pairs.source.shape[1], pairs.target.shape[1])
    if rank is not None and not 1 <= rank <= largest:
        raise InputError(f"rank={rank}: the matrix has ranks from 1 to {largest}")
    if ridge is not None and not (np.isfinite(ridge) and ridge >= 0):
        raise InputError(f"ridge={ridge}: must be a finite number, 0 or more")
    matrix = solve_ridge(pairs.source, pairs.target, _choose_ridge(pairs, seed) if ridge is None else ridge)
    return pairs.make_adapter("affine", matrix=matrix if rank is None else reduce_rank(pairs.source, matrix, rank))


def _choose_ridge(pairs: "_Pairs", seed: int) -> float:
    """Return the ridge whose map of the other pairs is nearest to the held-out ones, by the mean squared error."""
    fitted, held_out = pairs.split(seed)
    scale = float((pairs.source**2).sum() / pairs.source.shape[1]) or 1.0
    ridges = [float(scale * ridge) for ridge in RIDGES]
    errors = [
        ((held_out.source @ solve_ridge(fitted.source, fitted.target, ridge) - held_out.target) ** 2).mean()
        for ridge in ridges
    ]
    return ridges[int(np.argmin(errors))]


def fit_mlp(source: Embeddings, target: Embeddings, *, center: bool = True, seed: int = 0) -> Adapter:
    """Fit the affine map of `fit_affine`, and a network with 256 hidden units (GELU) for what it leaves.

    A residual MLP, as in Drift-Adapter (arXiv 2509.23471), trained with the mean squared error by Adam. It keeps the
    weights with the least error on a fifth of the pairs, at first those of the affine map alone.

    Args:
        source: (N, D) vectors of the images by the model whose vectors will be mapped.
        target: (N, E) vectors of the same images by the other model.
        center: whether to subtract the means of both sides before, and to add that of the target after.
        seed: seed of the first weights, of the batches and of the held-out pairs. The same seed and pairs give the same
            adapter on the same machine.

    Raises:
        InputError: if the pairs can't be used.
    """
    pairs = _Pairs.make(source, target, center=center)
    fitted, held_out = pairs.split(seed)
    matrix = solve_ridge(fitted.source, fitted.target, _choose_ridge(pairs, seed))
    inputs, rests, tried, tried_rests = (
        torch.from_numpy(part.astype(np.float32))
        for side in (fitted, held_out)
        for part in (side.source, side.target - side.source @ matrix)
    )
    generator = torch.Generator().manual_seed(seed)
    dimension, size = matrix.shape
    hidden = (torch.randn(dimension, HIDDEN, generator=generator) * (2 / dimension) ** 0.5).requires_grad_()
    weights = [hidden, torch.zeros(HIDDEN, requires_grad=True), torch.zeros(HIDDEN, size, requires_grad=True)]
    optimizer = torch.optim.Adam(weights, lr=LEARNING_RATE)
    best, best_error, best_epoch = [weight.detach().clone() for weight in weights], float((tried_rests**2).mean()), 0
    for epoch in range(1, EPOCHS + 1):
        for rows in torch.randperm(len(inputs), generator=generator).split(BATCH):
            with torch.enable_grad():
                error = ((_forward(weights, inputs[rows]) - rests[rows]) ** 2).mean()
            optimizer.zero_grad()
            error.backward()
            optimizer.step()
        with torch.no_grad():
            held_out_error = float(((_forward(weights, tried) - tried_rests) ** 2).mean())
        if held_out_error < best_error:
            best, best_error, best_epoch = [weight.detach().clone() for weight in weights], held_out_error, epoch
        if epoch - best_epoch >= PATIENCE:
            break
    names = ("hidden", "hidden_bias", "output")
    return pairs.make_adapter("mlp", matrix=matrix, **dict(zip(names, (w.double().numpy() for w in best), strict=True)))


def _forward(weights: list[torch.Tensor], inputs: torch.Tensor) -> torch.Tensor:
    hidden, bias, output = weights
    return torch.nn.functional.gelu(inputs @ hidden + bias, approximate="tanh") @ output


def _gelu(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Compute GELU in its form with tanh, as the training does; PyTorch's call alone would take longer."""
    cubic: NDArray[np.float32] = np.float32((2 / np.pi) ** 0.5) * (values + np.float32(0.044715) * values**3)
    return np.float32(0.5) * values * (1 + np.tanh(cubic))


FITS = {"procrustes": fit_procrustes, "affine": fit_affine, "mlp": fit_mlp}
"""The functions that fit an adapter, by its kind."""


@dataclass(frozen=True)
class _Pairs:
    """Vectors of the same images in two spaces, L2-normalized and perhaps centered, (N, D) and (N, E) float64."""

    source: Floats
    target: Floats
    means: tuple[Floats, Floats]
    digest: str

    @classmethod
    def make(cls, source: Embeddings, target: Embeddings, *, center: bool) -> "_Pairs":
        if len(source) != len(target):
            raise InputError(f"pairs: {len(source)} source vectors for {len(target)} target vectors; give one for each")
        if len(source) < 2:
            raise InputError(
                f"pairs: {len(source)}; an adapter needs two or more, one or more for each dimension to fit well"
            )
        sides = [_unit(side, name) for side, name in ((source, "source"), (target, "target"))]
        digest = sha256(b"".join(side.tobytes() for side in sides)).hexdigest()[:16]
        means = [side.mean(axis=0) if center else np.zeros(side.shape[1]) for side in sides]
        return cls(sides[0] - means[0], sides[1] - means[1], (means[0], means[1]), digest)

    def split(self, seed: int) -> "tuple[_Pairs, _Pairs]":
        """Return the pairs to fit, and those that are held out."""
        count = len(self.source)
        if count < FEWEST_PAIRS:
            raise InputError(
                f"pairs: {count}; {FEWEST_PAIRS} or more are needed to hold some out; procrustes needs none"
            )
        order = np.random.default_rng(seed).permutation(count)
        parts = np.split(order, [count - max(1, round(HELD_OUT * count))])
        fitted, held_out = (replace(self, source=self.source[rows], target=self.target[rows]) for rows in parts)
        return fitted, held_out

    def make_adapter(self, kind: str, **arrays: Floats) -> Adapter:
        means = dict(zip(("source_mean", "target_mean"), self.means, strict=True))
        return Adapter(kind, {**means, **arrays}, self.digest)


def _unit(vectors: Embeddings, name: str, dtype: Any = np.float64) -> Any:
    """L2-normalize vectors (N, D); those of zeros stay zero."""
    array = vectors.detach().cpu().numpy() if isinstance(vectors, torch.Tensor) else np.asarray(vectors)
    if array.ndim != 2 or not array.size or not np.isfinite(array).all():
        raise InputError(f"{name}: of shape {array.shape}; expected (N, D) with N, D >= 1, of finite numbers")
    floats = array.astype(dtype)
    return floats / np.maximum(np.linalg.norm(floats, axis=1, keepdims=True), np.finfo(dtype).tiny)
