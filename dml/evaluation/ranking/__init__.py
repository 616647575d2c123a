from dml.evaluation.ranking.queries import PerQuery, query_share, rank_queries

__all__ = ["PerQuery", "query_share", "rank_queries"]
