"""A trained model in a user's hands: it embeds images, and can be saved, uploaded and exported."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from dml.inference.embedder import Embedder

if TYPE_CHECKING:
    from dml.inference.exports.exporting import ExportReport
    from dml.inference.index_items import Source


class ImageEmbedder(Embedder):
    """A trained model that turns images into vectors; `dml.load` makes one.

    The vectors are L2-normalised, so the inner product of two of them is their cosine similarity. A model that was
    trained in a Poincare ball gives points of the ball, which are compared by their Poincare distance.

    Threads may share it: they read images at the same time, and run the network one after the other.

    Args:
        model: network with its heads.
        settings: configuration with which the model was built and trained.
        heads: names of the heads whose embeddings are concatenated, in this order; None for those that the training
            chose, which are all without ``choose_heads``.
        device: device that embeds: "cpu", "cuda", "mps" and so on; "auto" takes a GPU if there is one.

    Raises:
        InputError: if the model has no such head.
    """

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

    def export(
        self, file: str | Path, *, probe: "Source | None" = None, quantize: str | None = None, batch_size: int = 32
    ) -> "ExportReport":
        """Write the network, from uint8 pixels to vectors, to a file that runs without dml.

        The file is compared with the model on images before it gets its name. `dml.inference.exports.exporting` says
        what the file takes and gives.

        Args:
            file: file to write, which mustn't exist yet. A name ending with .onnx gives ONNX, .pt2 torch.export's
                program.
            probe: images to compare on: a folder, a .csv file, paths or a table; None takes random pixels.
            quantize: "int8" writes a second file, such as ``model.int8.onnx``, with weights of 8 bits; None doesn't.
            batch_size: number of images at a time in the comparison.

        Returns:
            The largest difference of the vectors, recall@1, and the images a second, of the model and of each file.

        Raises:
            InputError: if the file can't be written so, or its vectors differ from the model's.
        """
        from dml.inference.exports.exporting import export_model
        from dml.inference.exports.probe_images import draw_noise, list_probe

        images = draw_noise(self) if probe is None else list_probe(self, probe)
        return export_model(self, file, images, quantize=quantize, batch_size=batch_size)

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
