"""Evaluation: embeddings and labels become metrics."""

from dml.evaluation.evaluator import Evaluation, Evaluator, evaluate, evaluate_table
from dml.evaluation.metric import Kind, Metric, MetricConfig
from dml.evaluation.ranking import PerQuery, query_share, rank_queries

__all__ = [
    "Evaluation",
    "Evaluator",
    "Kind",
    "Metric",
    "MetricConfig",
    "PerQuery",
    "evaluate",
    "evaluate_table",
    "query_share",
    "rank_queries",
]
