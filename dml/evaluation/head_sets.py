"""The heads, and the sets of heads, that a test evaluates beside all heads together."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dml.evaluation.printed_metrics.metric_names import join_head_names, split_head_names
from dml.ops.errors import InputError


def list_evaluated_heads(heads: Iterable[str], evaluation: Mapping[str, Any]) -> list[str]:
    """Return the names of what a test evaluates: each head by ``heads``, the sets of heads by ``head_sets``.

    Args:
        heads: names of the model's heads.
        evaluation: the values below ``evaluation`` in the configuration.

    Raises:
        InputError: if head_sets is no list of lists of the model's heads.
    """
    heads, head_sets = list(heads), evaluation["head_sets"] or []
    for head_set in head_sets:
        names = list(head_set) if isinstance(head_set, Sequence) and not isinstance(head_set, str) else []
        if not names or not are_heads(names, heads):
            raise InputError(
                f"evaluation.head_sets={head_sets}: expected lists of some of the heads {', '.join(heads)}, each once, "
                f"such as [[{','.join(heads[:2])}]]"
            )
    return list(dict.fromkeys([*(heads if evaluation["heads"] else []), *map(join_head_names, head_sets)]))


def select_joint(names: Iterable[str]) -> list[str]:
    """Return the names, each once, that stand for several heads, whose embeddings are concatenated."""
    return [name for name in dict.fromkeys(names) if len(split_head_names(name)) > 1]


def are_heads(names: Sequence[str], heads: Iterable[str]) -> bool:
    """Return whether some names are those of heads, each once."""
    return len({*names} & {*heads}) == len(names)
