"""The threshold of a tested model: chosen on the validation classes, judged on the tested ones."""

from pytorch_lightning import Trainer
from pytorch_lightning.utilities import rank_zero_only

from dml.data.table import ImageTable
from dml.evaluation.geometry import UnitEmbeddings
from dml.evaluation.threshold import evaluate_threshold, make_pairs
from dml.metrics.pairs import LabeledPairs
from dml.run.evaluators import build_threshold_settings
from dml.run.settings import Settings
from dml.runtime.run_folder import RunFolder
from dml.training.data import EvaluationData
from dml.training.embedders import CHOSEN_HEADS, ModelEmbedder

Metrics = dict[str, float]


def evaluate_model_threshold(
    settings: Settings,
    trainer: Trainer,
    embedder: ModelEmbedder,
    images: EvaluationData,
    embeddings: UnitEmbeddings,
    tested: ImageTable,
    folder: RunFolder,
) -> Metrics:
    """Evaluate the threshold of a model, and write the curves of the splits.

    The validation split is embedded for it, unless it is the tested one.

    Args:
        settings: settings of the tested stage.
        trainer: trainer of the pass over the validation split.
        embedder: model that embeds the split.
        images: images of all splits.
        embeddings: embeddings (N, D) of the tested images.
        tested: table of the tested images.
        folder: folder of the curves.

    Returns:
        Metrics named threshold/...; none if the option is off, or embeddings are compared by another distance.
    """
    threshold = build_threshold_settings(settings)
    pairs = make_pairs(embeddings, tested) if threshold else None
    if threshold is None or pairs is None:
        rank_zero_only(folder.write_threshold_curves)({})
        return {}
    split = images.tested_on
    validated = pairs if split == "val" else _embed_validation(trainer, embedder, images)
    metrics, curves = evaluate_threshold(split, pairs, validated, threshold)
    rank_zero_only(folder.write_threshold_curves)({name: curve.tolist() for name, curve in curves.items()})
    return metrics


def _embed_validation(trainer: Trainer, embedder: ModelEmbedder, images: EvaluationData) -> LabeledPairs | None:
    """Embed the validation split and return its pairs; None if there is no such split."""
    table = images.table.select_evaluated("val")
    if not len(table):
        return None
    split, images.tested_on = images.tested_on, "val"
    trainer.test(embedder, images, verbose=False)
    images.tested_on = split
    embedded = embedder.embedded
    embeddings = UnitEmbeddings.normalize(embedded.embeddings[CHOSEN_HEADS].to(trainer.strategy.root_device))
    is_whole = len(embedded.rows) == len(table)  # images that can't be read may be skipped
    return make_pairs(embeddings, table if is_whole else table.take(embedded.rows.numpy()))
