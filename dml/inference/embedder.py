"""A network with its preprocessing, which turns images into vectors."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property, partial
from pathlib import Path
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader

from dml.data.images import ImageFile, UnreadableImageError
from dml.data.transforms import Pipeline
from dml.data.worker_processes import choose_start_method
from dml.evaluation.names import THRESHOLD_PREFIX
from dml.evaluation.threshold import find_calibration, find_nearest_threshold
from dml.inference.image_inputs import ImageInput, list_inputs, read_batch, read_pixels
from dml.inference.model_settings import ModelSettings
from dml.metrics.verification import Calibration
from dml.models.embedding import EmbeddingModel, embed_views
from dml.ops.precision import full_float32
from dml.run.builders import make_fingerprint
from dml.runtime.errors import InputError, check_choice, check_whole, show
from dml.runtime.text import printable, progress_bar

PRECISIONS = {"32": None, "bf16": torch.bfloat16, "16": torch.float16}

REMEDY = ' (on_corrupt="skip" leaves it out, in a command --on-corrupt skip)'
"""The end of the error line for an unreadable image, which names an argument of `Embedder.embed`."""

_NETWORK_LOCKS: WeakKeyDictionary[EmbeddingModel, Lock] = WeakKeyDictionary()
"""A lock for each network: it keeps the maps of its layers in itself, so one thread at a time may run it."""

logger = logging.getLogger(__name__)


class Embedder:
    """A network with its preprocessing, which turns images into L2-normalized vectors; see `dml.ImageEmbedder`."""

    def __init__(
        self, model: EmbeddingModel, settings: ModelSettings, heads: Sequence[str] | None = None, device: str = "auto"
    ) -> None:
        available = [*model.embed_dims]
        self.heads = model.chosen_heads if heads is None else (*heads,)
        if not self.heads or len(set(self.heads)) < len(self.heads) or not set(self.heads) <= set(available):
            raise InputError(f"heads={[*self.heads]}: this model has the heads {', '.join(available)}, each once")
        self.settings = settings
        self.device = _choose_device(device)
        self.model = model.eval().to(self.device)
        self._transforms = {1: settings.build_transform()}  # while objects of Python are given

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.settings.name}, heads={'+'.join(self.heads)}, dimension={self.dimension}, "
            f"fingerprint={self.fingerprint})"
        )

    @property
    def dimension(self) -> int:
        """The size D of the vectors."""
        return sum(self.model.embed_dims[head] for head in self.heads)

    @property
    def has_chosen_heads(self) -> bool:
        """Whether the model is used with the heads that its training chose, which its metrics are of."""
        return self.heads == self.model.chosen_heads

    @property
    def threshold(self) -> float | None:
        """The similarity from which on two images are judged to be of one class, see ``evaluation.threshold``.

        None if the model's test chose none, or if the model is used with other heads than the tested ones.
        """
        return self.threshold_errors.get("similarity")

    @property
    def nearest_threshold(self) -> float | None:
        """The similarity from which on the nearest image is judged to be of the query's class, as `threshold`.

        A search takes the best of many comparisons, so that it is larger, or None if no similarity was sure enough.
        """
        return find_nearest_threshold(self.threshold_errors)

    @property
    def threshold_errors(self) -> dict[str, float]:
        """The threshold, the values of the `calibration`, and the error rates of both; see docs/evaluation.md."""
        metrics = self.settings.metrics.items() if self.has_chosen_heads else ()
        return {
            name.removeprefix(THRESHOLD_PREFIX): value for name, value in metrics if name.startswith(THRESHOLD_PREFIX)
        }

    @property
    def calibration(self) -> Calibration | None:
        """The function that turns a similarity into the probability of one class; None if the test fitted none."""
        return find_calibration(self.threshold_errors)

    @cached_property
    def fingerprint(self) -> str:
        """An identifier of weights, network, preprocessing, views and heads; only vectors of one are comparable."""
        return make_fingerprint(self.settings.decisive, self.model, heads=self.heads)

    def preprocess(self, image: ImageInput | ImageFile, views: int = 1) -> Tensor:
        """Turn an image into the uint8 RGB input of the network, (3, h, w), or (V, 3, h, w) for several views.

        The image is a path, a PIL image, an array (H, W, 3) uint8, a tensor (3, H, W) uint8, or an `ImageFile`. It
        raises an UnreadableImageError.
        """
        file = image if isinstance(image, ImageFile) else read_pixels(image, self.settings.limits)
        return self._choose_transform(views)(file)

    def _choose_transform(self, views: int) -> Pipeline:
        if views not in self._transforms:
            self._transforms[views] = self.settings.build_transform(views)
        return self._transforms[views]

    def embed(
        self,
        images: ImageInput | Iterable[ImageInput],
        *,
        batch_size: int | None = None,
        num_workers: int = 0,
        views: int | None = None,
        precision: str = "32",
        on_corrupt: str = "raise",
        progress: bool = False,
    ) -> NDArray[np.float32]:
        """Embed images. -> (N, D) float32, L2-normalized, in the order of the images

        Args:
            images: one image or several, as paths, PIL images, arrays (H, W, 3) uint8 or tensors (3, H, W) uint8; or
                the path of a folder, which stands for all images in it and below it, sorted by path.
            batch_size: number of images in the network at a time; None takes that of the run's test, which gives the
                same digits as the test.
            num_workers: number of processes that decode images; 0 decodes in this process.
            views: number of views of each image, whose embeddings are averaged: 1, 2 (the image and its mirror image),
                5 (corners and center) or 10 (both). None takes the number of the run's test, whose vectors gave the
                metrics and the threshold.
            precision: "32", or "bf16" and "16" for a faster forward pass on hardware that has it.
            on_corrupt: "raise" raises an UnreadableImageError for an unreadable image; "skip" makes the row NaN,
                and a warning names the image.
        """
        listed = list_inputs(images)
        embeddings = np.full((len(listed), self.dimension), np.nan, np.float32)
        batches = self.embed_in_batches(listed, batch_size, num_workers, views, precision, on_corrupt)
        with progress_bar("embedded", len(listed)) if progress else nullcontext(lambda _: None) as advance:
            for positions, vectors in batches:
                embeddings[positions] = vectors
                advance(len(positions))
        return embeddings

    encode = embed  # its name in other libraries

    def embed_in_batches(
        self,
        images: Sequence[ImageInput],
        batch_size: int | None = None,
        num_workers: int = 0,
        views: int | None = None,
        precision: str = "32",
        on_corrupt: str = "raise",
        start_method: str | None = None,
    ) -> Iterator[tuple[list[int], NDArray[np.float32]]]:
        """Embed images and yield each batch at once: the positions of its B images, and their vectors (B, D).

        The images come in their order, and the vectors of one batch are in memory at a time. Arguments and errors are
        those of `embed`; ``start_method`` is that of the decoding processes, and None takes Python's default.
        """
        check_choice("on_corrupt", on_corrupt, ("raise", "skip"))
        check_choice("precision", precision, PRECISIONS)
        size = self.settings.batch_size if batch_size is None else batch_size
        check_whole("batch_size", size, least=1)
        check_whole("num_workers", num_workers, least=0)
        transform = self._choose_transform(self.settings.views if views is None else views)
        rows: Any = range(len(images))
        loader: DataLoader[int] = DataLoader(
            rows,
            batch_size=int(size),  # the loader takes no number of NumPy
            collate_fn=partial(read_batch, images, transform, self.settings.limits),
            num_workers=int(num_workers),
            multiprocessing_context=choose_start_method(num_workers, start_method),
            generator=torch.Generator(),  # otherwise the loader would draw from the caller's random numbers
        )
        first = 0
        for readable, batch, errors in loader:
            if errors and on_corrupt == "raise":
                raise UnreadableImageError(f"{errors[0]}{REMEDY}")
            for error in errors:
                logger.warning("skipped: %s", error)
            positions = [*range(first, first + len(readable) + len(errors))]
            vectors = np.full((len(positions), self.dimension), np.nan, np.float32)
            if batch is not None:
                embedded = self.embed_batch(batch, precision)
                _check_finite(embedded, [images[position] for position in readable], precision)
                vectors[np.array(readable) - first] = embedded
            yield positions, vectors
            first += len(positions)

    @torch.no_grad()
    def __call__(self, images: Tensor, precision: str = "32") -> Tensor:
        """Embed inputs (B, 3, h, w) of `preprocess`, or V views (B, V, 3, h, w) -> (B, D) float32, no gradients."""
        images, dtype = images.to(self.device), PRECISIONS[precision]
        autocast = torch.autocast(self.device.type, dtype=dtype, enabled=dtype is not None)
        with _NETWORK_LOCKS.setdefault(self.model, Lock()), full_float32(self.device), autocast:
            embedded = embed_views(self.model, images) if images.ndim > 4 else self.model(images)
        return self.join_heads(embedded)

    def embed_batch(self, images: Tensor, precision: str = "32") -> NDArray[np.float32]:
        """Embed a batch as `__call__` does. -> (B, D) float32"""
        with torch.inference_mode():
            return self(images, precision).cpu().numpy()

    def join_heads(self, embedded: Mapping[str, Tensor]) -> Tensor:
        """Join the embeddings (B, D) of the heads, by name, to vectors of unit length."""
        return self.model.concatenate({head: embedded[head].float() for head in self.heads})


class VectorsAlone(Embedder):
    """What an index has in the place of a model if its vectors came without one: it embeds no image."""

    has_chosen_heads = False  # so there is no threshold
    dimension = 0
    fingerprint = ""

    def __init__(self, dimension: int) -> None:
        self.dimension, self.device = dimension, torch.device("cpu")
        self.settings = ModelSettings({"data": {}}, "no model")

    def __repr__(self) -> str:
        return "no model"

    def embed(self, *_: Any, **__: Any) -> Any:
        """Refuse to embed."""
        raise InputError(
            "the index was built of vectors, without a model, so it embeds no image: search by vectors (Q, D), or open "
            "the index with the model, dml.Index.load(FOLDER, model)"
        )

    encode = preprocess = __call__ = embed


def check_model(model: object) -> None:
    """Refuse what is no model, such as the path of one."""
    if not isinstance(model, Embedder):
        raise InputError(f"model={show(model)}: must be an opened model, such as dml.load(FOLDER)")


def _check_finite(vectors: NDArray[np.float32], images: Sequence[ImageInput], precision: str) -> None:
    """Refuse vectors (B, D) with NaN or infinite numbers, which would count as those of unreadable images."""
    is_finite = np.isfinite(vectors).all(axis=1)
    if not is_finite.all():
        image = images[int(np.argmin(is_finite))]
        name = printable(str(image)) if isinstance(image, str | Path) else f"an image of type {type(image).__name__}"
        reason = "its weights may have diverged" if precision == "32" else f'precision="{precision}" may be too coarse'
        raise InputError(f"{name}: the model's vector has numbers that are NaN or infinite; {reason}")


def _choose_device(name: str) -> torch.device:
    """Return the named device; "auto" is a GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        line = str(error).splitlines()[0]
        raise InputError(f"device={name}: this machine has none that PyTorch can use ({line}); auto or cpu") from error
