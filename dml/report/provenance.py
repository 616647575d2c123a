"""What a metric is of, besides method and data: vectors, first weights, how the checkpoint was chosen, and device."""

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

SELECTIONS = {
    "val": "the best on the validation split",
    "test": "the best on the test split",
    "last": "the last one",
}
"""How a checkpoint was chosen, by the entry "selection" of metrics.json."""
UNKNOWN = "not stated"


def _describe_weights(config: Mapping[str, Any]) -> str:
    """Return the name of the data that the first weights of a network were trained on."""
    if init := (config.get("training") or {}).get("init"):
        return f"the checkpoint {init}"
    model = config.get("model") or {}
    weights = (model.get("backbone") or {}).get("weights")
    if weights == "download":
        return str((model.get("pretraining") or {}).get("data", "as the library offers them"))
    return {"None": "random", "packaged": "ImageNet-1k, packaged"}.get(str(weights)) or Path(str(weights)).name


def describe_measurement(metrics: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, str]:
    """Return what the metrics of a run are of, by the name of the fact."""
    return {
        "vector": str(metrics.get("vector", UNKNOWN)),
        "first weights": _describe_weights(config),
        "checkpoint": SELECTIONS.get(str(metrics.get("selection")), UNKNOWN),
        "split": str(metrics.get("split", UNKNOWN)),
        "device": str(metrics.get("device", UNKNOWN)),
    }


def describe_configuration(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the facts of `describe_measurement` that the configuration of a run tells before the run has ended.

    If the validation chooses heads, the size is between that of the last head and that of all heads.
    """
    model, evaluation = config["model"], config["evaluation"]
    heads, sizes = model["heads"], model["embed_dim"]
    dims = [sizes[head] if isinstance(sizes, Mapping) else sizes for head in heads]
    chooses = (config.get("heads") or {}).get("choose") and len(heads) > 1 and evaluation.get("selection") == "val"
    least = f"{dims[-1]:,} to " if chooses else ""
    dimensions = f"{least}{sum(dims):,} dimensions" + (" as the validation chooses heads" if chooses else "")
    known = {"selection": evaluation.get("selection"), "split": evaluation.get("split") or "test"}
    facts = describe_measurement(known | {"vector": f"{dimensions}, cosine"}, config)
    del facts["device"]
    return facts


def merge_facts(facts_of_runs: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return the facts of several runs as those of one row of a table; where runs differ, all values.

    >>> merge_facts([{"vector": "320 dimensions"}, {"vector": "256 dimensions"}, {"vector": "320 dimensions"}])
    {'vector': '320 dimensions or 256 dimensions'}
    """
    values_by_fact: dict[str, dict[str, None]] = {}
    for facts in facts_of_runs:
        for name, value in facts.items():
            values_by_fact.setdefault(name, {})[value] = None
    return {name: " or ".join(values) for name, values in values_by_fact.items()}


def join_facts(facts_by_name: Mapping[str, Mapping[str, str]]) -> str:
    """Return a sentence for each fact of a table's rows: the most frequent value, and which rows have another.

    >>> join_facts({"rll": {"split": "test"}, "nra": {"split": "test"}, "arcface": {"split": "val"}})
    'Split: test (arcface: val).'
    """
    sentences = []
    for fact in dict.fromkeys(fact for facts in facts_by_name.values() for fact in facts):
        value_by_name = {name: facts.get(fact, UNKNOWN) for name, facts in facts_by_name.items()}
        (usual, _), *rarer = Counter(value_by_name.values()).most_common()
        notes = "; ".join(
            f"{', '.join(name for name, other in value_by_name.items() if other == value)}: {value}"
            for value, _ in rarer
        )
        sentences.append(f"{fact.capitalize()}: {usual}" + (f" ({notes})." if notes else "."))
    return " ".join(sentences)
