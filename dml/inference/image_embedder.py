"""A trained model in a user's hands: it embeds images, and can be saved, uploaded and exported."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property
from numbers import Integral
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader

from dml.data.image_files.images import ImageFile, UnreadableImageError
from dml.data.transforms import Pipeline, stack
from dml.data.worker_processes import choose_start_method
from dml.evaluation.names import THRESHOLD_PREFIX
from dml.evaluation.threshold import find_calibration, find_nearest_threshold
from dml.inference.image_inputs import ImageInput, ImageInputs, Source, list_inputs, read_pixels
from dml.inference.model_settings import ModelSettings
from dml.metrics.verification import Calibration
from dml.models.embedding import EmbeddingModel, embed_views
from dml.ops.precision import full_float32
from dml.run.model_builders import make_fingerprint
from dml.runtime.console import progress_bar
from dml.runtime.errors import InputError, check_installed
from dml.runtime.files import in_one_line
from dml.runtime.text import printable

if TYPE_CHECKING:
    from dml.inference.exporting import ExportReport
    from dml.inference.mteb_encoder import MtebEncoder

PRECISIONS = {"32": None, "bf16": torch.bfloat16, "16": torch.float16}

REMEDY = ' (on_corrupt="skip" leaves it out, in a command --on-corrupt skip)'
"""The end of the error line for an unreadable image, which names an argument of `ImageEmbedder.embed`."""

_NETWORK_LOCKS: WeakKeyDictionary[EmbeddingModel, Lock] = WeakKeyDictionary()
"""A lock for each network: it keeps the maps of its layers in itself, so one thread at a time may run it."""

logger = logging.getLogger(__name__)


class ImageEmbedder:
    """A trained model that turns images into vectors; `dml.load` makes one.

    The vectors are L2-normalized, so the inner product of two of them is their cosine similarity.

    Threads may share it: they read images at the same time, and run the network one after the other.

    Args:
        heads: names of the heads whose embeddings are concatenated, in this order; None for those that the training
            chose, which are all without ``choose_heads``.
        device: device that embeds: "cpu", "cuda", "mps" and so on; "auto" takes a GPU if there is one.
    """

    def __init__(
        self,
        model: EmbeddingModel,
        settings: ModelSettings,
        heads: Sequence[str] | None = None,
        device: str = "auto",
    ) -> None:
        available = [*model.embed_dims]
        self.heads = model.chosen_heads if heads is None else (*heads,)
        if not self.heads or len(set(self.heads)) < len(self.heads) or not set(self.heads) <= set(available):
            raise InputError(f"heads={[*self.heads]}: this model has the heads {', '.join(available)}, each once")
        self.settings = settings
        self.device = _choose_device(device)
        self.model = model.eval().to(self.device)
        self._transforms = {1: settings.build_transform()}

    @staticmethod
    def from_module(
        module: nn.Module,
        *,
        image_size: int = 224,
        mean: Sequence[float] = (0.485, 0.456, 0.406),
        std: Sequence[float] = (0.229, 0.224, 0.225),
        name: str | None = None,
        device: str = "auto",
    ) -> "ImageEmbedder":
        """Make an embedder of a network that was trained anywhere; a copy of it, in evaluation mode.

        A folder of `save_pretrained` holds the weights and not the code, so `dml.load` takes the module again:
        ``dml.load(folder, module=Net())``.

        Args:
            module: network from images (B, 3, H, W) float to embeddings (B, D), which are L2-normalized.
            mean: mean of each RGB channel of the images that the network takes, of pixels from 0 to 1.
        """
        from dml.inference.pretrained import wrap_module

        return wrap_module(module, image_size, mean, std, name, device)

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
        value = self.threshold_errors.get("similarity")
        return None if value is None else float(value)

    @property
    def nearest_threshold(self) -> float | None:
        """The similarity from which on the nearest image is judged to be of the query's class, as `threshold`.

        A search takes the best of many comparisons, so that it is larger, or None if no similarity was sure enough.
        """
        value = find_nearest_threshold(self.threshold_errors)
        return None if value is None else float(value)

    @property
    def threshold_errors(self) -> dict[str, float]:
        """The threshold, the values of the `calibration`, and the error rates of both; see docs/evaluation.md."""
        if not self.has_chosen_heads:
            return {}
        metrics = self.settings.metrics.items()
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
        batches = self.embed_in_batches(
            listed,
            batch_size=batch_size,
            num_workers=num_workers,
            views=views,
            precision=precision,
            on_corrupt=on_corrupt,
        )
        with progress_bar("embedded", len(listed)) if progress else nullcontext(lambda _: None) as advance:
            for positions, vectors in batches:
                embeddings[positions] = vectors
                advance(len(positions))
        return embeddings

    def embed_in_batches(
        self,
        images: Sequence[ImageInput],
        *,
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
        if on_corrupt not in ("raise", "skip"):
            raise InputError(f"on_corrupt={on_corrupt}: raise or skip")
        if precision not in PRECISIONS:
            raise InputError(f"precision={precision}: {', '.join(PRECISIONS)}")
        size = self.settings.batch_size if batch_size is None else batch_size
        if not (isinstance(size, Integral) and isinstance(num_workers, Integral) and size >= 1 and num_workers >= 0):
            raise InputError(f"batch_size={size}, num_workers={num_workers}: whole numbers of at least 1 and 0")
        transform = self._choose_transform(self.settings.views if views is None else views)
        loader = DataLoader(
            ImageInputs(images, transform, self.settings.limits),
            batch_size=int(size),  # the loader takes no number of NumPy
            collate_fn=_collate,
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

    encode = embed  # its name in other libraries

    @torch.no_grad()
    def __call__(self, images: Tensor, precision: str = "32") -> Tensor:
        """Embed inputs (B, 3, h, w) of `preprocess`, or V views (B, V, 3, h, w) -> (B, D) float32, no gradients."""
        if not isinstance(images, Tensor) or images.ndim not in (4, 5) or images.shape[-3] != 3:
            shape = tuple(getattr(images, "shape", ()))
            raise InputError(f"images: of shape {shape}; a batch is a tensor (B, 3, h, w) of RGB from 0 to 255")
        images, dtype = images.to(self.device), PRECISIONS[precision]
        autocast = torch.autocast(self.device.type, dtype=dtype, enabled=dtype is not None)
        with _NETWORK_LOCKS.setdefault(self.model, Lock()), full_float32(self.device), autocast:
            embedded = embed_views(self.model, images) if images.ndim > 4 else self.model(images)
        return self.join_heads(embedded)

    @torch.inference_mode()
    def embed_batch(self, images: Tensor, precision: str = "32") -> NDArray[np.float32]:
        """Embed a batch as `__call__` does. -> (B, D) float32"""
        return self(images, precision).cpu().numpy()

    def join_heads(self, embedded: Mapping[str, Tensor]) -> Tensor:
        """Join the embeddings (B, D) of the heads, by name, to vectors of unit length."""
        return self.model.concatenate({head: embedded[head].float() for head in self.heads})

    def save_pretrained(self, folder: str | Path, *, license: str | None = None) -> Path:  # noqa: A002 (the hub's word)
        """Save the model to a folder that `dml.load` opens, with a model card, and return the folder's path.

        See `dml.inference.saved_folder` for the files. A folder that holds a saved model is replaced as a whole.

        Args:
            license: identifier of the license of the weights, such as "mit", for the model card. It depends on the
                licenses of the pretrained weights and of the data; None says in the card that none was stated.
        """
        from dml.inference.saved_folder import save_folder

        with in_one_line(folder):
            return save_folder(self, folder, license)

    def export(
        self, file: str | Path, *, probe: Source | None = None, quantize: str | None = None, batch_size: int = 32
    ) -> "ExportReport":
        """Write the network, from uint8 pixels to vectors, to a file that runs without dml, and report how it compares.

        The file is compared with the model on images before it gets its name. `dml.inference.exporting` says
        what the file takes and gives.

        Args:
            file: file to write, which mustn't exist yet. A name ending with .onnx gives ONNX, .pt2 torch.export's
                program.
            probe: images to compare on: a folder, a .csv file, paths or a table; None takes random pixels.
            quantize: "int8" writes a second file, such as ``model.int8.onnx``, with weights of 8 bits; None doesn't.
        """
        from dml.inference.exporting import draw_noise, export_model, list_probe

        images = draw_noise(self) if probe is None else list_probe(self, probe)
        return export_model(self, file, images, quantize=quantize, batch_size=batch_size)

    def as_mteb(self) -> "MtebEncoder":
        """Return the model as an encoder that ``mteb.evaluate`` tests on tasks of images."""
        check_installed("mteb", extra="mteb")
        from dml.inference.mteb_encoder import MtebEncoder

        return MtebEncoder(self)

    def push_to_hub(self, repository: str, *, license: str | None = None, private: bool = True) -> str:  # noqa: A002
        """Upload what `save_pretrained` saves to a repository of the Hugging Face hub, or a new one -> the address."""
        from huggingface_hub import HfApi

        hub = HfApi()
        address = hub.create_repo(repository, private=private, exist_ok=True)
        with TemporaryDirectory() as parent:
            folder = self.save_pretrained(Path(parent) / "model", license=license)
            hub.upload_folder(repo_id=repository, folder_path=folder)
        return str(address)


def _collate(items: Sequence[tuple[int, Tensor | None, str]]) -> tuple[list[int], Any, list[str]]:
    """Join items of `ImageInputs` -> positions and batch (None without any) of the readable images, and the errors."""
    readable = [(index, pixels) for index, pixels, _ in items if pixels is not None]
    batch = stack([pixels for _, pixels in readable]) if readable else None
    return [index for index, _ in readable], batch, [error for _, pixels, error in items if pixels is None]


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
