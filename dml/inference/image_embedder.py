"""A trained model with its preprocessing, which embeds a user's images."""

import hashlib
import json
import logging
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader

from dml.data.images import UnreadableImageError
from dml.data.limits import ImageLimits
from dml.data.transforms import stack
from dml.data.worker_processes import choose_start_method
from dml.inference.image_inputs import ImageInput, ImageInputs, list_inputs, read_pixels
from dml.inference.model_settings import ModelSettings
from dml.models.embedding import EmbeddingModel
from dml.ops.console import progress_bar
from dml.ops.errors import InputError
from dml.ops.poincare import join_in_ball
from dml.training.crops import embed_views

PRECISIONS = {"32": None, "bf16": torch.bfloat16, "16": torch.float16}

logger = logging.getLogger(__name__)


class ImageEmbedder:
    """A trained model that turns images into vectors; `dml.load` makes one.

    The vectors are L2-normalised, so the inner product of two of them is their cosine similarity. A model that was
    trained in a Poincare ball gives points of the ball, which are compared by their Poincare distance.

    Args:
        model: network with its heads.
        settings: configuration with which the model was built and trained.
        heads: names of the heads whose embeddings are concatenated, in this order; None for all of the model's.
        device: device that embeds: "cpu", "cuda", "mps" and so on; "auto" takes a GPU if there is one.

    Raises:
        InputError: if the model has no such head.
    """

    def __init__(
        self,
        model: EmbeddingModel,
        settings: ModelSettings,
        heads: Sequence[str] | None = None,
        device: str = "auto",
    ) -> None:
        available = [*model.embed_dims]
        self.heads = (*available,) if heads is None else (*heads,)
        if not self.heads or len(set(self.heads)) < len(self.heads) or not set(self.heads) <= set(available):
            raise InputError(f"heads={[*self.heads]}: this model has the heads {', '.join(available)}, each once")
        self.settings = settings
        self.ball = settings.ball
        self.device = _choose_device(device)
        self.model = model.eval().to(self.device)
        self._transform = settings.build_transform()

    def __repr__(self) -> str:
        return (
            f"ImageEmbedder({self.settings.name}, heads={'+'.join(self.heads)}, dimension={self.dimension}, "
            f"geometry={self.geometry}, fingerprint={self.fingerprint})"
        )

    @property
    def geometry(self) -> str:
        """How vectors are compared: "cosine", or by the distance in a ball such as "poincare (curvature 0.1)"."""
        return f"poincare (curvature {self.ball.curvature:g})" if self.ball else "cosine"

    @property
    def dimension(self) -> int:
        """The size D of the vectors."""
        return sum(self.model.embed_dims[head] for head in self.heads)

    @cached_property
    def fingerprint(self) -> str:
        """An identifier of the weights, the network, the preprocessing and the heads.

        Vectors of models with different fingerprints can't be compared.
        """
        digest = hashlib.sha256()
        described = {**self.settings.decisive, "heads": self.heads, "geometry": self.geometry}
        digest.update(json.dumps(described, sort_keys=True).encode())
        for name, value in sorted(self.model.state_dict().items()):
            plain = value.detach().cpu().contiguous()
            digest.update(f"{name} {plain.dtype} {tuple(plain.shape)}".encode())
            digest.update(plain.reshape(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()[:16]

    def preprocess(self, image: ImageInput) -> Tensor:
        """Turn an image into the network's input (3, h, w) uint8 RGB, as the test of its run did.

        Args:
            image: path, PIL image, array (H, W, 3) uint8 or tensor (3, H, W) uint8.

        Raises:
            UnreadableImageError: if the image can't be read.
            InputError: if it is something else.
        """
        return self._transform(read_pixels(image, ImageLimits()))

    def embed(
        self,
        images: ImageInput | Iterable[ImageInput],
        *,
        batch_size: int | None = None,
        num_workers: int = 0,
        views: int = 1,
        precision: str = "32",
        on_corrupt: str = "raise",
        progress: bool = False,
    ) -> NDArray[np.float32]:
        """Embed images. -> (N, D) float32, L2-normalised or points of the model's ball, in the order of the images

        Args:
            images: one image or several, as paths, PIL images, arrays (H, W, 3) uint8 or tensors (3, H, W) uint8; or
                the path of a folder, which stands for all images in it and below it, sorted by path.
            batch_size: number of images in the network at a time; None takes that of the run's test, which gives the
                same digits as the test.
            num_workers: number of processes that decode images; 0 decodes in this process.
            views: number of views of each image, whose embeddings are averaged: 1, 2 (the image and its mirror image),
                5 (corners and centre) or 10 (both).
            precision: "32", or "bf16" and "16" for a faster forward pass on hardware that has it.
            on_corrupt: treatment of unreadable images: "raise" raises an error; "skip" makes the row NaN, and a
                warning names the image.
            progress: whether to show how far it is.

        Raises:
            UnreadableImageError: if an image can't be read and ``on_corrupt`` is "raise".
            InputError: if an argument can't be used.
        """
        if on_corrupt not in ("raise", "skip"):
            raise InputError(f"on_corrupt={on_corrupt}: raise or skip")
        if precision not in PRECISIONS:
            raise InputError(f"precision={precision}: {', '.join(PRECISIONS)}")
        listed = list_inputs(images)
        transform = self._transform if views == 1 else self.settings.build_transform(views)
        dataset = ImageInputs(listed, transform, self.settings.limits)
        size = self.settings.batch_size if batch_size is None else batch_size
        if size < 1 or num_workers < 0:
            raise InputError(f"batch_size={size}, num_workers={num_workers}: at least 1 and 0")
        loader = DataLoader(
            dataset,
            batch_size=size,
            collate_fn=_collate,
            num_workers=num_workers,
            multiprocessing_context=choose_start_method(num_workers),
        )
        embeddings = np.full((len(listed), self.dimension), np.nan, np.float32)
        with progress_bar("embedded", len(listed)) if progress else nullcontext(_ignore) as advance:
            for positions, batch, errors in loader:
                _treat_errors(errors, on_corrupt)
                if batch is not None:
                    embeddings[positions] = self._embed_batch(batch, PRECISIONS[precision])
                advance(len(positions) + len(errors))
        return embeddings

    @torch.inference_mode()
    def _embed_batch(self, images: Tensor, precision: torch.dtype | None) -> NDArray[np.float32]:
        """Embed a batch (B, 3, h, w), or several views of each image (B, V, 3, h, w). -> (B, D)"""
        images = images.to(self.device)
        with torch.autocast(self.device.type, dtype=precision, enabled=precision is not None):
            embedded = embed_views(self.model, images) if images.ndim > 4 else self.model(images)
        chosen = {head: embedded[head].float() for head in self.heads}
        if self.ball:
            return join_in_ball([*chosen.values()], self.ball).cpu().numpy()
        is_part = len(chosen) == 1 < len(self.model.embed_dims)  # the test normalises one of several heads just once
        vectors = F.normalize(chosen[self.heads[0]], dim=1) if is_part else self.model.concatenate(chosen)
        return vectors.cpu().numpy()

    def save_pretrained(self, folder: str | Path, *, license: str | None = None) -> Path:  # noqa: A002 (the hub's word)
        """Save the model to a folder that `dml.load` opens, with a model card, and return the folder's path.

        See `dml.inference.saved_folder` for the files. A folder that holds a saved model is replaced as a whole.

        Args:
            folder: path of the folder.
            license: identifier of the licence of the weights, such as "mit", for the model card. It depends on the
                licences of the pretrained weights and of the data; None says in the card that none was stated.

        Raises:
            InputError: if the folder holds something else.
        """
        from dml.inference.saved_folder import save_folder

        return save_folder(self, folder, license)

    def push_to_hub(self, repository: str, *, license: str | None = None, private: bool = True) -> str:  # noqa: A002
        """Upload what `save_pretrained` saves to the Hugging Face hub, and return the address.

        Args:
            repository: name of the repository, such as "somebody/birds"; it is made if it doesn't exist.
            license: identifier of the licence of the weights, see `save_pretrained`.
            private: whether a repository that is made is private.
        """
        from huggingface_hub import HfApi

        hub = HfApi()
        address = hub.create_repo(repository, private=private, exist_ok=True)
        with TemporaryDirectory() as parent:
            folder = self.save_pretrained(Path(parent) / "model", license=license)
            hub.upload_folder(repo_id=repository, folder_path=folder)
        return str(address)


def _collate(items: Sequence[tuple[int, Tensor | None, str]]) -> tuple[list[int], Tensor | None, list[str]]:
    """Join items of `ImageInputs` -> the positions and the batch of the readable images, and the errors."""
    readable = [(index, pixels) for index, pixels, _ in items if pixels is not None]
    batch = stack([pixels for _, pixels in readable]) if readable else None
    return [index for index, _ in readable], batch, [error for _, pixels, error in items if pixels is None]


def _treat_errors(errors: Sequence[str], on_corrupt: str) -> None:
    """Raise the first error of unreadable images, or warn of each."""
    if errors and on_corrupt == "raise":
        raise UnreadableImageError(errors[0])
    for error in errors:
        logger.warning("skipped: %s", error)


def _ignore(number: int) -> None:
    """Take the number of embedded images where no progress is shown."""


def _choose_device(name: str) -> torch.device:
    """Return the named device; "auto" is a GPU if there is one.

    Raises:
        InputError: if PyTorch knows no such device, or the machine has none.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        line = str(error).splitlines()[0]
        raise InputError(f"device={name}: this machine has none that PyTorch can use ({line}); auto or cpu") from error
