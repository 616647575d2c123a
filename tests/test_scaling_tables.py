"""The tables of docs/scaling.md that are computed."""

from collections.abc import Callable

import pytest
from conftest import ROOT
from estimate_scaling import COSTS, LOSSES, RUN, TABLES, exchanged_bytes, loss_bytes, simulate

from dml.losses.compose import takes_queries

PAGE = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("make_table", TABLES)
def test_the_page_has_the_tables_of_the_script(make_table: Callable[[], str]) -> None:
    assert make_table() in PAGE


def test_bytes_are_those_that_the_other_processes_have() -> None:
    # three processes with 8 of 24 images: 16 images of 4 float32 numbers, one label and one row, and two values
    assert exchanged_bytes(24, 3, 4) == {
        "embeddings": 16 * 4 * 4,
        "labels and rows": 16 * 2 * 8,
        "gradients": 16 * 4 * 4,
        "values": 2 * 4,
    }


def test_sharding_divides_the_pairs() -> None:
    whole, sharded = (loss_bytes("rll", 4096, queries) - 4 * 4096 * RUN.dim * 4 for queries in (4096, 512))
    assert whole == 8 * sharded
    times = [simulate("rll", 64, shard=shard).loss for shard in (False, True)]
    assert times[0] == pytest.approx(64 * times[1])


def test_the_script_knows_which_losses_are_sharded() -> None:
    assert {name: takes_queries(build()) for name, (build, _) in LOSSES.items()} == {
        name: cost.is_sharded for name, cost in COSTS.items()
    }
