"""The ranking of a gallery for queries, and the metrics of each query."""

from dml.evaluation.ranking.queries import PerQuery, query_share, rank_queries

__all__ = ["PerQuery", "query_share", "rank_queries"]
