"""The choice of the heads whose embeddings are concatenated, on the classes of a validation: ``choose_heads``."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dml.evaluation.geometry import ranking_device
from dml.evaluation.names import MetricName, join_head_names, split_head_names
from dml.training.embedders import Embedded, Evaluate, Metrics


@dataclass(frozen=True)
class HeadChoice:
    """Chooses the best of the last head, the last two heads, and so on to all heads.

    Lower heads help on some data sets, such as drawings, and harm on others, such as photographs of birds.

    Args:
        heads: names of the model's heads, from low to high.
        monitor: name of the metric that compares sets of heads, on which checkpoints are chosen as well.
        mode: "max" if larger values of it are better, "min" if smaller ones are.
        tie_breaker: name of a metric that decides between equal values, the larger the better; None takes more heads.
    """

    heads: Sequence[str]
    monitor: str
    mode: str = "max"
    tie_breaker: str | None = None

    @property
    def candidates(self) -> list[str]:
        """The names of the sets of heads, the largest one first.

        >>> HeadChoice(["L", "M", "H"], "level0/recall@1").candidates
        ['L+M+H', 'M+H', 'H']
        """
        return [join_head_names(self.heads[first:]) for first in range(len(self.heads))]

    def choose(self, embedded: Embedded, evaluate: Evaluate, device: torch.device) -> tuple[tuple[str, ...], Metrics]:
        """Evaluate the embeddings of each set -> the heads of the best one, and its metrics.

        Args:
            embedded: embeddings of the validation split, with those of all `candidates`.
            evaluate: function that computes the metrics of embeddings.
            device: device of the model.
        """
        metrics = {
            name: evaluate(embedded.embeddings[name].to(ranking_device(device)), embedded.rows)
            for name in self.candidates
        }
        best = max(metrics, key=lambda name: self._rank(metrics[name]))
        return tuple(split_head_names(best)), metrics[best]

    def _rank(self, metrics: Metrics) -> tuple[float, float]:
        value = metrics[MetricName.parse(self.monitor).metric]
        tie = 0.0 if self.tie_breaker is None else metrics[self.tie_breaker]
        return (value if self.mode == "max" else -value), tie
