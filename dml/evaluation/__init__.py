from dml.evaluation.lists import evaluate_table, rank_table
from dml.evaluation.protocol import evaluate
from dml.evaluation.queries import PerQuery, query_share, rank_queries

__all__ = ["PerQuery", "evaluate", "evaluate_table", "query_share", "rank_queries", "rank_table"]
