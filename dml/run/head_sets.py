"""The heads, and the sets of heads, that a configuration evaluates beside all heads together."""

from omegaconf import DictConfig, ListConfig

from dml.evaluation.metric_names import MetricName, heads_of, set_name
from dml.ops.errors import InputError


def evaluated_heads(config: DictConfig) -> list[str]:
    """The names of what a test evaluates: each head by ``evaluation.heads``, the sets of ``evaluation.head_sets``.

    Raises:
        InputError: if head_sets is no list of lists of the model's heads.
    """
    heads, sets = list(config.model.heads), config.evaluation.head_sets or []
    for some in sets:
        named = list(some) if isinstance(some, ListConfig) else []
        if not named or not is_subset(named, heads):
            raise InputError(
                f"evaluation.head_sets={sets}: expected lists of some of the heads {', '.join(heads)}, each once, "
                f"such as [[{','.join(heads[:2])}]]"
            )
    return list(dict.fromkeys([*(heads if config.evaluation.heads else []), *map(set_name, sets)]))


def concatenated_heads(config: DictConfig, monitor: str = "") -> list[str]:
    """The names of the sets of heads whose embeddings a test takes together, and those of a monitored metric.

    Args:
        config: the configuration.
        monitor: name of the metric that is monitored; "" for none.

    Raises:
        InputError: as `evaluated_heads`.
    """
    names = [*evaluated_heads(config), MetricName.parse(monitor).heads]
    return [name for name in dict.fromkeys(names) if len(heads_of(name)) > 1]


def is_subset(some: list[str], heads: list[str]) -> bool:
    """Whether some names are those of heads, each once."""
    return len({*some} & {*heads}) == len(some)
