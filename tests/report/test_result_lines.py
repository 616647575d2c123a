from typing import Any

import pytest

from dml.report.console import list_remarks


@pytest.mark.parametrize(
    ("monitor", "metrics", "expected"),
    [
        ("level0/map@r", {"raw/level0/recall@1": 0.904, "level0/recall@1": 0.849}, {"worse": "90.4 % to 84.9 %;"}),
        (
            "level0/map@r",
            {"raw/level0/recall@1": 0.812, "level0/recall@1": 0.688, "step": 0},
            {"unchanged": "no validation", "worse": "untrained heads: recall@1 went from 81.2 % to 68.8 %"},
        ),
        ("level0/map@r", {"raw/level0/map@r": 0.5, "level0/map@r": 0.4}, {"worse": "map@r went from 50.0 % to 40.0 %"}),
        ("level1/ap", {"raw/level1/ap": 0.5, "level1/ap": 0.4}, {"worse": "level1/ap went from 50.0 % to 40.0 %;"}),
        ("heads/H/h_ap", {"raw/h_ap": 0.5, "heads/H/h_ap": 0.4, "h_ap": 0.9}, {"worse": "heads/H/h_ap went from 50.0"}),
        ("level0/eer", {"raw/level0/eer": 0.1, "level0/eer": 0.2}, {"worse": "10.0 % to 20.0 %"}),  # smaller is better
        ("level0/opis", {"raw/level0/opis": 0.01, "level0/opis": 0.02}, {"worse": "opis went from 0.01 to 0.02;"}),
        (
            "level0/map@r",
            {"raw/level0/recall@1": 0.5, "level0/recall@1": 0.4, "raw/level0/map@r": 0.3, "level0/map@r": 0.2},
            {"worse": "recall@1 went from 50.0 % to 40.0 %, map@r went from 30.0 % to 20.0 %;"},
        ),
        (
            "level0/map@r",
            {"raw/level0/map@r": 0.3, "level0/map@r": 0.5, "raw/level2/map@r": 0.615, "level2/map@r": 0.427},
            {"coarser": "level2/map@r went from 61.5 % to 42.7 %"},
        ),
        (
            "level0/eer",
            {"raw/level0/recall@1": 0.3, "level0/recall@1": 0.4, "raw/level0/map@r": 0.3, "level0/map@r": 0.3},
            {},
        ),
        ("level0/eer", {"raw/level0/eer": 0.2, "level0/eer": 0.1}, {}),
        ("level0/map@r", {"h_ap": 0.1}, {}),
    ],
)
def test_what_a_reader_has_to_know(monitor: str, metrics: Any, expected: dict[str, str]) -> None:
    for quick in (False, True):
        remarks = list_remarks(metrics, {"checkpoints": {"monitor": monitor}, "quick": quick})
        assert remarks.keys() == expected.keys() | ({"quick"} if quick else set())
        assert all(words in remarks[name] for name, words in expected.items())
