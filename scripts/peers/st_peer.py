"""sentence-transformers: its trainer and `encode`, with the network in an `InputModule` of our own.

Its own way to a timm network is a folder on a hub (`TimmWrapperModel` of transformers), whose processor and pooling
would make other inputs and other embeddings.
"""

import os
from collections.abc import Callable
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}  # before the imports that read them

import PIL.Image
import torch
from datasets import Dataset, Image
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
    util,
)
from sentence_transformers.base.modules.input_module import InputModule
from sentence_transformers.sentence_transformer.data_collator import SentenceTransformerDataCollator
from torch import Tensor, nn
from transformers import TrainerCallback

from peers import parts
from peers.protocol import BATCH_SIZE, EVAL_BATCH_SIZE, LEARNING_RATE, WEIGHT_DECAY, Job, Results


class ImageModule(InputModule):  # type: ignore[misc]
    """The network as the library's first module, which turns PIL images to tensors and embeds them."""

    modalities = ["image"]  # noqa: RUF012 (a property of the library)

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.network = parts.Network(job)
        self.transforms = {mode: parts.build_transform(job.size, is_training=mode) for mode in (False, True)}

    def preprocess(self, inputs: Any, prompt: Any = None, *, is_training: bool = False, **_: Any) -> dict[str, Tensor]:  # noqa: ARG002
        """Transform a list of images or of paths -> {"pixel_values": (B, 3, H, W)}."""
        return {"pixel_values": torch.stack([self.transforms[is_training](open_image(image)) for image in inputs])}

    def forward(self, features: dict[str, Tensor], **_: Any) -> dict[str, Tensor]:
        """Add the embeddings (B, D) to the features."""
        return {**features, "sentence_embedding": self.network(features["pixel_values"])}

    def save(self, *_: Any, **__: Any) -> None:
        """Refuse: nothing is saved here."""
        raise NotImplementedError("this module is never saved")


def open_image(image: Any) -> Any:
    """Return an image, or that of a path, in RGB."""
    if not isinstance(image, str):
        return image.convert("RGB")
    with PIL.Image.open(image) as opened:
        return opened.convert("RGB")


class ModelLoss(nn.Module):
    """The loss in the library's form: of features and labels, with the model inside."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.loss = parts.MinedLoss()

    def forward(self, features: Any, labels: Tensor) -> Tensor:
        """Embed the features of the only column, and compute the loss -> scalar."""
        value: Tensor = self.loss(self.model(next(iter(features)))["sentence_embedding"], labels)
        return value


def train(job: Job, model: Any, after_step: Callable[[int], bool]) -> None:
    """Train the model, without logging, saving or schedule, as in the other peers."""

    class AfterStep(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
            if after_step(state.global_step):
                model.train()

    def preprocess(images: Any, prompt: Any = None, task: Any = None) -> dict[str, Tensor]:  # noqa: ARG001
        features: dict[str, Tensor] = model[0].preprocess(images, is_training=True)
        return features

    arguments = SentenceTransformerTrainingArguments(
        output_dir=os.path.dirname(job.results),
        max_steps=job.steps,
        per_device_train_batch_size=BATCH_SIZE,
        learning_rate=LEARNING_RATE,
        weight_decay=WEIGHT_DECAY,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        dataloader_num_workers=job.workers,
        dataloader_pin_memory=False,
        batch_sampler=lambda *_, **__: parts.ExportedBatches(job),
        save_strategy="no",
        report_to="none",
        use_cpu=True,
    )
    paths, labels = parts.read_rows(job.folder, "train")
    SentenceTransformerTrainer(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_dict({"image": paths, "label": labels}).cast_column("image", Image()),
        loss=ModelLoss(model),
        data_collator=SentenceTransformerDataCollator(preprocess_fn=preprocess),
        callbacks=[AfterStep()],
    ).train()


def compute_recall(embeddings: Tensor, labels: Tensor) -> Results:
    """Compute recall@1 by the library's search: its evaluators can't exclude the query from the gallery."""
    hits = util.semantic_search(embeddings, embeddings, top_k=2)
    nearest = [next(hit["corpus_id"] for hit in pair if hit["corpus_id"] != row) for row, pair in enumerate(hits)]
    return {"recall@1": float((labels[torch.tensor(nearest)] == labels).float().mean())}


def evaluate(job: Job, model: Any, split: str) -> Results:
    """Embed and evaluate a split; `encode` decodes in the main process."""
    paths, labels = parts.read_rows(job.folder, split)
    options = {"convert_to_tensor": True, "normalize_embeddings": True, "show_progress_bar": False}
    return compute_recall(model.encode(paths, batch_size=EVAL_BATCH_SIZE, **options), torch.tensor(labels))


def build(job: Job) -> Any:
    """Build the library's model of one module."""
    return SentenceTransformer(modules=[ImageModule(job)], device="cpu")


if __name__ == "__main__":
    parts.Library(build, train, evaluate, lambda _: compute_recall).run()
