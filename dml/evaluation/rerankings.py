"""The re-rankings that a test evaluates beside the plain ranking: ``evaluation.rerankings``."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dml.evaluation.evaluator import Evaluator, Metrics
from dml.evaluation.geometry import UnitEmbeddings
from dml.evaluation.metric import OF_RANKS
from dml.evaluation.names import RERANKED
from dml.retrieval.k_reciprocal import KReciprocal
from dml.retrieval.reranking import AlphaQueryExpansion, Comparison, DatabaseAugmentation, Reranker
from dml.runtime.errors import InputError

STEPS: Mapping[str, Callable[..., Reranker]] = {
    "alpha_qe": AlphaQueryExpansion,
    "dba": DatabaseAugmentation,
    "k_reciprocal": KReciprocal,
}
"""The steps of re-rankings by name; each is a dataclass."""

JOINT_STEPS = "+"
"""The character between the names of steps in the name of a re-ranking, such as dba+alpha_qe."""


@dataclass(frozen=True)
class Reranking:
    """Steps that change a ranking one after another."""

    steps: Mapping[str, Reranker]

    @property
    def name(self) -> str:
        """The name of the re-ranking in metrics.json, such as "dba+alpha_qe"."""
        return JOINT_STEPS.join(self.steps)

    def __call__(self, comparison: Comparison) -> Comparison:
        """Take all steps."""
        for step in self.steps.values():
            comparison = step(comparison)
        return comparison


def make_rerankings(evaluation: Mapping[str, Any], *, has_gallery: bool) -> list[Reranking]:
    """Make the re-rankings of a test.

    >>> evaluation = {"rerankings": ["alpha_qe", ["dba", "alpha_qe"]], "reranking_steps": {"alpha_qe": {"n": 5}}}
    >>> [reranking.name for reranking in make_rerankings(evaluation, has_gallery=False)]
    ['alpha_qe', 'dba+alpha_qe']

    Configurations of older versions have neither ``rerankings`` nor ``reranking_steps``. `dml.run.settings` declares
    the numbers of each step.

    Raises:
        InputError: if a step is unknown or one of its numbers makes no sense, or steps can't follow each other.
    """
    rerankings = evaluation.get("rerankings")
    if rerankings is None:
        return []
    if evaluation.get("exclude"):
        raise InputError(
            f"evaluation.rerankings={rerankings}: with evaluation.exclude={evaluation['exclude']} a query excludes "
            "another item after each step; evaluation.exclude=null"
        )
    parameters = evaluation.get("reranking_steps") or {}
    made = [
        _make_reranking([value] if isinstance(value, str) else value, parameters, has_gallery) for value in rerankings
    ]
    names = [reranking.name for reranking in made]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise InputError(f"evaluation.rerankings={rerankings}: {repeated[0]} is named twice")
    return made


def _make_reranking(names: Any, parameters: Mapping[str, Mapping[str, Any]], has_gallery: bool) -> Reranking:
    is_list = isinstance(names, Sequence) and all(isinstance(name, str) for name in names)
    if not is_list or not names or not {*names} <= {*STEPS} or len({*names}) < len(names):
        raise InputError(f"evaluation.rerankings: {names} is not one or several of {', '.join(STEPS)}, each once")
    if "k_reciprocal" in names[:-1]:
        raise InputError(
            f"evaluation.rerankings: {list(names)}: k_reciprocal gives no vectors, so it must be the last step"
        )
    if "k_reciprocal" in names and len(names) > 1 and not has_gallery:
        raise InputError(
            f"evaluation.rerankings: {list(names)}: behind another step k_reciprocal needs a data set with queries "
            "that are not in the gallery; take it alone"
        )
    return Reranking({name: STEPS[name](**parameters.get(name, {})) for name in names})


def evaluate_rerankings(evaluator: Evaluator, embeddings: UnitEmbeddings, rerankings: Iterable[Reranking]) -> Metrics:
    """Compute the ranking metrics of each re-ranking -> {"reranked/alpha_qe/level0/recall@1": fraction, ...}.

    Clusters and pairs of embeddings have no ranking, so a re-ranking has none of their metrics.
    """
    selected = evaluator.config.select_kind(*OF_RANKS)
    ranking_evaluator = replace(evaluator, config=replace(evaluator.config, metrics=selected))
    metrics: Metrics = {}
    for reranking in rerankings:
        values = ranking_evaluator.evaluate(embeddings, reranker=reranking).metrics
        metrics |= {f"{RERANKED}/{reranking.name}/{name}": value for name, value in values.items()}
    return metrics
