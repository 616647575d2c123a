"""The type of an error decides whether it is one line or a bug with its trace."""

import errno

import pytest
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import OmegaConf

from dml.commands.error_lines import explain


@pytest.mark.parametrize(
    ("node", "line"),
    [
        ({"_target_": "fractions.Fraction", "numerator": "a"}, "part: Invalid literal for Fraction: 'a'"),
        ({"_target_": "statistics.median", "data": 3}, "part: 'int' object is not iterable"),
        ({"_target_": "nowhere.Mine"}, "part: Error loading 'nowhere.Mine'"),
        ({"_target_": "fractions.Fraction", "numerator": 1, "denominator": 0}, ""),  # a ZeroDivisionError is a bug
    ],
)
def test_an_object_that_refuses_its_arguments(node: dict[str, object], line: str) -> None:
    with pytest.raises(InstantiationException) as raised:
        instantiate(OmegaConf.create({"part": node}))
    told = explain(raised.value) or ""
    assert told.startswith(line)
    assert told.endswith("; debug=true shows where") == bool(line)
    assert "\n" not in told


def test_short_memory_is_one_line() -> None:
    for error, expected in (
        (
            MemoryError("Unable to allocate 9 GiB for an array"),
            "9 GiB for an array; smaller batches",
        ),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB. GPU 0 has"), "CUDA out of memory; smaller batches"),
        (ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), "a smaller data.num_workers takes less"),
    ):
        assert expected in (explain(error) or "")
    assert explain(RuntimeError("anything")) is None
