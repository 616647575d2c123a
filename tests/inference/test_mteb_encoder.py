"""`as_mteb`: mteb's own evaluator, on a task of this file, agrees with `dml.evaluate`."""

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from dml.evaluation import evaluate
from dml.runtime.errors import InputError
from tests.small_embedders import make_model

pytestmark = pytest.mark.pipeline  # loading mteb takes two seconds

CLASSES, QUERIES, ITEMS = 8, 32, 64  # means of 32 hits have five decimals, to which mteb rounds


def draw_images(count: int, seed: int) -> tuple[list[Image.Image], np.ndarray]:
    """Draw noisy images of the classes, of several sizes and modes."""
    rng, labels = np.random.default_rng(seed), np.arange(count) % CLASSES
    colors = np.random.default_rng(0).integers(0, 120, (CLASSES, 1, 1, 3))
    pixels = [rng.integers(0, 136, (32 + row % 5, 40, 3)) + colors[label] for row, label in enumerate(labels)]
    images = [Image.fromarray(pixel.astype(np.uint8)) for pixel in pixels]
    return [image.convert("L") if row % 7 == 0 else image for row, image in enumerate(images)], labels


def make_noise_task() -> Any:
    """Make a task of mteb's."""
    from datasets import Dataset, Features, Value
    from datasets import Image as ImageFeature
    from mteb.abstasks.retrieval import AbsTaskRetrieval
    from mteb.abstasks.task_metadata import TaskMetadata

    class NoiseTask(AbsTaskRetrieval):
        metadata = TaskMetadata(
            name="NoiseI2I",
            description="Noise of eight colors.",
            dataset={"path": "none/noise", "revision": "1"},
            type="Any2AnyRetrieval",
            category="i2i",
            modalities=["image"],
            eval_splits=["test"],
            eval_langs=["eng-Latn"],
            main_score="hit_rate_at_1",
        )

        def load_data(self, **_: Any) -> None:
            columns = Features({"id": Value("string"), "image": ImageFeature()})
            (queries, query_labels), (items, item_labels) = draw_images(QUERIES, 1), draw_images(ITEMS, 2)
            relevant = {
                f"q{row}": {f"d{item}": 1 for item in np.flatnonzero(item_labels == label)}
                for row, label in enumerate(query_labels)
            }
            split = {
                "corpus": Dataset.from_dict({"id": [f"d{row}" for row in range(ITEMS)], "image": items}, columns),
                "queries": Dataset.from_dict({"id": [f"q{row}" for row in range(QUERIES)], "image": queries}, columns),
                "relevant_docs": relevant,
                "top_ranked": None,
            }
            self.dataset, self.data_loaded = {"default": {"test": split}}, True

    return NoiseTask()


def test_its_scores_are_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    import mteb

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    model = make_model()
    result = mteb.evaluate(model.as_mteb(), make_noise_task(), cache=None, encode_kwargs={"batch_size": 10})
    scores = result.task_results[0].scores["test"][0]
    (queries, query_labels), (items, item_labels) = draw_images(QUERIES, 1), draw_images(ITEMS, 2)
    vectors = [torch.from_numpy(model.embed(images)) for images in (queries, items)]
    labels = [torch.from_numpy(column) for column in (query_labels, item_labels)]
    ours = evaluate(vectors[0], labels[0], vectors[1], labels[1], recall_at=(1, 5), clustering=False)
    assert 0.2 < ours["level0/recall@1"] < 1
    assert scores["hit_rate_at_1"] == pytest.approx(ours["level0/recall@1"], abs=1e-6)
    assert scores["hit_rate_at_5"] == pytest.approx(ours["level0/recall@5"], abs=1e-6)
    assert scores["map_at_100"] == pytest.approx(ours["level0/ap"], abs=5.1e-6)  # rounded to five decimals


def test_other_tasks_are_refused() -> None:
    with pytest.raises(InputError, match="id, text; this model embeds images alone"):
        make_model().as_mteb().encode([{"id": ["a"], "text": ["b"]}])
