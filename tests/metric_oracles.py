"""The metrics of one ranking, written from their definitions.

A ranking is a list of relevant or not, or of how many levels each item shares with the query, nearest first.
"""

import math
from collections.abc import Sequence


def recall(relevant: list[bool], k: int) -> float:
    return float(any(relevant[:k]))


def precision(relevant: list[bool], n: int) -> float:
    return sum(relevant[:n]) / n


def average_precision(relevant: list[bool]) -> float:
    positives = sum(relevant)
    return sum(precision(relevant, n) for n in range(1, len(relevant) + 1) if relevant[n - 1]) / positives


def trapezoid_ap(relevant: list[bool]) -> float:
    places = [place for place, is_positive in enumerate(relevant) if is_positive]
    area = 0.0
    for j, place in enumerate(places):
        area += ((j / place if place else 1.0) + (j + 1) / (place + 1)) / 2
    return area / len(places)


def mmp_at_5(relevant: list[bool]) -> float:
    return precision(relevant, min(sum(relevant), 5))


def map_at_r(relevant: list[bool]) -> float:
    positives = sum(relevant)
    return sum(precision(relevant, n) for n in range(1, positives + 1) if relevant[n - 1]) / positives


def map_at_k(relevant: list[bool], k: int) -> float:
    hits = [precision(relevant, place) for place, hit in enumerate(relevant[:k], 1) if hit]
    return sum(hits) / min(k, sum(relevant))


def mp_at_k(relevant: list[bool], k: int) -> float:
    depth = min(k, max(place for place, hit in enumerate(relevant, 1) if hit))
    return sum(relevant[:depth]) / depth


def r_precision(relevant: list[bool]) -> float:
    return precision(relevant, sum(relevant))


def h_ap(relevance: list[float]) -> float:
    """Of the items' relevance."""
    total = 0.0
    for place, own in enumerate(relevance):
        if own > 0:
            total += sum(min(other, own) for other in relevance[: place + 1]) / (place + 1)
    return total / sum(relevance)


def power_relevance(levels: list[int], depth: int, alpha: float, count_query: bool = False) -> list[float]:
    number = {level: levels.count(level) + (count_query and level == depth) for level in range(1, depth + 1)}
    return [(level / depth) ** alpha / number[level] if level else 0.0 for level in levels]


def weighted_ap_relevance(levels: list[int], weights: Sequence[float], count_query: bool) -> list[float]:
    """weights of APs, the finest first: the AP over items of p shared levels or more has weights[L - p]."""
    depth = len(weights)
    positives = {p: sum(level >= p for level in levels) + count_query for p in range(1, depth + 1)}
    return [sum(weights[depth - p] / positives[p] for p in range(1, level + 1)) for level in levels]


def ndcg(levels: list[int]) -> float:
    def dcg(ranking: list[int]) -> float:
        return sum((2**level - 1) / math.log2(1 + rank) for rank, level in enumerate(ranking, 1))

    return dcg(levels) / dcg(sorted(levels, reverse=True))


def asi(levels: list[int]) -> float:
    ideal = sorted(levels, reverse=True)
    positives = sum(level > 0 for level in levels)
    total = 0.0
    for n in range(1, positives + 1):
        both = sum(min(levels[:n].count(level), ideal[:n].count(level)) for level in range(1, max(levels) + 1))
        total += both / n
    return total / positives
