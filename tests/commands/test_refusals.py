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
        ({"_target_": "fractions.Fraction", "numerator": 1, "denominator": 0}, None),  # a ZeroDivisionError is a bug
    ],
)
def test_an_object_that_refuses_its_arguments(node: dict[str, object], line: str | None) -> None:
    with pytest.raises(InstantiationException) as raised:
        instantiate(OmegaConf.create({"part": node}))
    told = explain(raised.value)
    if line is None:
        assert told is None
    else:
        assert told is not None
        assert told.startswith(line)
        assert "\n" not in told
        assert told.endswith("; debug=true shows where")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            MemoryError("Unable to allocate 9 GiB for an array"),
            "Unable to allocate 9 GiB for an array; smaller batches",
        ),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB. GPU 0 has"), "CUDA out of memory; smaller batches"),
        (ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), "a smaller data.num_workers takes less"),
        (RuntimeError("anything"), None),
    ],
)
def test_short_memory_is_one_line(error: Exception, expected: str | None) -> None:
    line = explain(error)
    assert line is None if expected is None else expected in (line or "")
