"""The model card of a saved model, in the format of the Hugging Face hub: YAML facts, then Markdown for people."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from huggingface_hub import EvalResult, ModelCardData

from dml.evaluation.names import HEADS, RERANKED, THRESHOLD_PREFIX, format_percent, join_head_names
from dml.evaluation.threshold import describe_choice, find_calibration
from dml.inference.embedder import Embedder
from dml.inference.model_settings import ModelSettings
from dml.ops.text.text_tables import markdown_table
from dml.report.provenance import name_dataset

SHOWN = ("recall@", "map@r", "h_ap", "nmi")
"""Beginnings of the names of the metrics that the card shows, without their level."""

USE = """\
```python
import dml

model = dml.load("FOLDER")               # the folder of this file
vectors = model.embed(["a.jpg", "b.jpg"])  # (2, {dimension}) float32
index = dml.Index.build(model, "photos")
scores, paths = index.search("a.jpg", k=5)
```
"""


def write_card(embedder: Embedder, license_id: str | None) -> str:
    """Return the text of a model's card.

    Args:
        embedder: the model that the card describes.
        license_id: identifier of the licence of the weights; None if none was stated.
    """
    settings = embedder.settings
    has_picture = settings.picture is not None and embedder.has_chosen_heads
    dataset = name_dataset(settings.config)
    shown = select_shown(_select_metrics(embedder))
    facts = ModelCardData(
        library_name="dml",
        license=license_id,
        pipeline_tag="image-feature-extraction",
        tags=["deep-metric-learning", "image-retrieval"],
        model_name=settings.name if shown else None,
        eval_results=[_eval_result(dataset, name, value) for name, value in shown.items()] or None,
    )
    paragraphs = [
        f"---\n{facts.to_yaml()}\n---\n",
        f"# {settings.name}, trained on {dataset}\n",
        "A network that turns an image into a vector; similar images have similar vectors.\n",
        "![Queries of the test and their nearest neighbours](retrieval.png)\n" if has_picture else "",
        "## Use\n",
        USE.format(dimension=embedder.dimension),
        "## Facts\n",
        markdown_table(("fact", "value"), _list_facts(embedder, license_id)),
        "\n## Results\n",
        *_describe_results(embedder, shown),
        *_describe_threshold(embedder.threshold_errors),
        *_describe_calibration(embedder.threshold_errors),
    ]
    return "\n".join(paragraph for paragraph in paragraphs if paragraph)


def _select_metrics(embedder: Embedder) -> Mapping[str, Any]:
    """Return the metrics of the heads that the model is used with; of heads that the test left out there are none."""
    metrics = embedder.settings.metrics
    if embedder.has_chosen_heads:
        return metrics
    prefix = f"{HEADS}/{join_head_names(embedder.heads)}/"
    return {name.removeprefix(prefix): value for name, value in metrics.items() if name.startswith(prefix)}


def select_shown(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics that the card shows, by name, of those of the chosen heads together."""
    return {
        name: float(value)
        for name, value in metrics.items()
        if not name.startswith(("raw/", "heads/", "fixed/", f"{RERANKED}/", THRESHOLD_PREFIX))
        and name.rpartition("/")[2].startswith(SHOWN)
        and isinstance(value, int | float)
        and math.isfinite(value)
    }


def _eval_result(dataset: str, metric: str, value: float) -> EvalResult:
    return EvalResult(
        task_type="image-retrieval",
        dataset_type=dataset,
        dataset_name=dataset,
        metric_type=metric,
        metric_value=round(value, 4),
    )


def _list_facts(embedder: Embedder, license_id: str | None) -> Iterable[tuple[str, str]]:
    settings = embedder.settings
    config, training = settings.config, settings.training
    yield "network", f"{settings.name}, heads {' + '.join(embedder.heads)}"
    yield "vector", f"{embedder.dimension} dimensions; geometry: {embedder.geometry}"
    yield "input", f"RGB images of any size, {_describe_input(embedder)}"
    yield "background of transparent images", settings.limits.background
    yield "trained on", f"{name_dataset(config)}, {len(settings.class_names) or 'an unknown number of'} classes"
    yield "loss", str((config.get("loss") or {}).get("_target_", "unknown")).rpartition(".")[2]
    yield "steps", str(training.get("step", "unknown"))
    yield "checkpoint chosen on", _describe_selection(settings)
    yield "seed", str(config.get("seed", "unknown"))
    yield "fingerprint", f"`{embedder.fingerprint}`"
    yield "licence of the weights", license_id or "none was stated; pretrained weights and data have their own"


def _describe_input(embedder: Embedder) -> str:
    """Return what the network sees of an image."""
    image = torch.zeros(3, 600, 800, dtype=torch.uint8)
    height, width = embedder.preprocess(image).shape[-2:]
    return f"which become {width} x {height} pixels"


def _describe_selection(settings: ModelSettings) -> str:
    selection = settings.metrics.get("selection")
    texts = {"val": "validation classes", "last": "nothing: it is the last one", "test": "the test classes themselves"}
    return texts.get(str(selection), "unknown: the run wasn't tested at this step")


def _describe_results(embedder: Embedder, shown: Mapping[str, float]) -> Iterable[str]:
    settings = embedder.settings
    if not shown:
        is_tested = settings.metrics and not embedder.has_chosen_heads
        reason = "has no metrics of these heads alone" if is_tested else "wasn't tested at this step"
        yield f"The run of this model {reason}.\n"
        return
    split = "classes that it wasn't trained on" if settings.metrics.get("split") == "test" else "the validation classes"
    yield f"In percent, on {split}; each query is searched among the others, and never finds itself. One run.\n"
    raw = {name: settings.metrics.get(f"raw/{name}", math.nan) for name in shown}
    rows = [
        (name, f"{100 * value:.1f}", "" if math.isnan(raw[name]) else f"{100 * raw[name]:.1f}")
        for name, value in shown.items()
    ]
    yield markdown_table(("metric", "this model", "the network's features before training"), rows) + "\n"


def _describe_threshold(errors: Mapping[str, float]) -> Iterable[str]:
    """Describe the threshold and its errors, if the model has one."""
    if "similarity" not in errors:
        return
    yield "## Same or not\n"
    yield (
        f"Two images are judged to be of one class if the similarity of their vectors is at least "
        f"`model.threshold` = {errors['similarity']:.4f}. It was chosen on the validation classes, "
        f"{describe_choice(errors)}.\n"
    )
    rows = [
        (name, format_percent(errors[fmr]), f"{100 * errors[fnmr]:.1f}")
        for name, fmr, fnmr in (
            ("validation classes", "val_fmr", "val_fnmr"),
            ("test classes", "fmr", "fnmr"),
            ("test classes, the median one", "fmr_median_class", "fnmr_median_class"),
            ("test classes, the worst one", "fmr_worst_class", "fnmr_worst_class"),
        )
        if fmr in errors
    ]
    heads = ("errors in percent", "pairs of different classes judged the same", "pairs of one class judged different")
    yield markdown_table(heads, rows) + "\n"
    if "unknown_accepted" in errors:
        yield (
            f"Of queries whose class is not in the gallery, {1 - errors['unknown_accepted']:.1%} are rejected: "
            "their nearest neighbour is below the threshold. "
            f"Of the others {errors['known_accepted']:.1%} are accepted.\n"
        )


def _describe_calibration(errors: Mapping[str, float]) -> Iterable[str]:
    """Describe the probabilities and their errors, if the model has them; they follow the threshold."""
    calibration = find_calibration(errors)
    if calibration is None:
        return
    yield (
        "`model.calibration.probability(similarity)` is the probability that two images are of one class, if "
        f"{calibration.prior:.2%} of all pairs are of one class, as on the validation classes, where it was fitted: "
        f"1 / (1 + exp(-({calibration.slope:.2f} * similarity + {calibration.intercept:.2f} + log(p / (1 - p))))), "
        "where p is that share; `prior=0.5` takes another one.\n"
    )
    if "ece" not in errors:
        return
    rows = [
        (
            pairs,
            format_percent(errors[f"ece{suffix}"]),
            *(f"{errors[name + suffix]:.4f}" for name in ("brier", "log_loss")),
        )
        for pairs, suffix in (("all pairs", ""), ("as many pairs of one class as of others", "_balanced"))
    ]
    yield markdown_table(("on the test classes", "calibration error, %", "Brier score", "log loss"), rows) + "\n"
