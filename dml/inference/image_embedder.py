"""A trained model in a user's hands: it embeds images, and can be saved, uploaded and exported."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from torch import nn

from dml.inference.embedder import Embedder
from dml.inference.image_inputs import Source
from dml.inference.raw_networks import wrap_module
from dml.inference.saved_folder import save_folder
from dml.runtime.errors import check_installed

if TYPE_CHECKING:
    from dml.inference.exporting import ExportReport
    from dml.inference.mteb_encoder import MtebEncoder


class ImageEmbedder(Embedder):
    """A trained model that turns images into vectors; `dml.load` makes one.

    The vectors are L2-normalized, so the inner product of two of them is their cosine similarity.

    Threads may share it: they read images at the same time, and run the network one after the other.

    Args:
        heads: names of the heads whose embeddings are concatenated, in this order; None for those that the training
            chose, which are all without ``choose_heads``.
        device: device that embeds: "cpu", "cuda", "mps" and so on; "auto" takes a GPU if there is one.
    """

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
        return ImageEmbedder(*wrap_module(module, image_size, mean, std, name), device=device)

    def save_pretrained(self, folder: str | Path, *, license: str | None = None) -> Path:  # noqa: A002 (the hub's word)
        """Save the model to a folder that `dml.load` opens, with a model card, and return the folder's path.

        See `dml.inference.saved_folder` for the files. A folder that holds a saved model is replaced as a whole.

        Args:
            license: identifier of the license of the weights, such as "mit", for the model card. It depends on the
                licenses of the pretrained weights and of the data; None says in the card that none was stated.
        """
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
