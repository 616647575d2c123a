from typing import Any

import pytest

from dml.report.console import _print_threshold, list_remarks

MONITOR = {"checkpoints": {"monitor": "level0/map@r"}}


def test_a_training_that_makes_it_worse_says_so_and_what_to_try() -> None:
    (worse,) = list_remarks({"raw/level0/recall@1": 0.904, "level0/recall@1": 0.849, "step": 400}, {}).values()
    assert worse.startswith(
        "the backbone's own features find more than the trained network: recall@1 went from 90.4 % to 84.9 %; "
        "a smaller optimizer.lr"
    )
    assert "docs/own_data.md" in worse


def test_untrained_heads_that_find_less_than_the_backbone_are_told() -> None:
    remarks = list_remarks({"raw/level0/recall@1": 0.812, "level0/recall@1": 0.688, "step": 0}, {})
    assert [*remarks] == ["unchanged", "worse"]
    assert "untrained heads: recall@1 went from 81.2 % to 68.8 %; more numbers (model.embed_dim)" in remarks["worse"]


@pytest.mark.parametrize(
    ("monitor", "metrics", "words"),
    [
        ("level0/map@r", {"raw/level0/map@r": 0.5, "level0/map@r": 0.4}, "map@r went from 50.0 % to 40.0 %;"),
        ("level1/ap", {"raw/level1/ap": 0.5, "level1/ap": 0.4}, "level1/ap went from 50.0 % to 40.0 %;"),
        ("heads/H/h_ap", {"raw/h_ap": 0.5, "heads/H/h_ap": 0.4, "h_ap": 0.9}, "heads/H/h_ap went from 50.0 % to"),
        (
            "level0/eer",
            {"raw/level0/eer": 0.1, "level0/eer": 0.2},
            "eer went from 10.0 % to 20.0 %;",
        ),  # smaller is better
        ("level0/opis", {"raw/level0/opis": 0.01, "level0/opis": 0.02}, "opis went from 0.01 to 0.02;"),
    ],
)
def test_the_metric_that_chose_the_checkpoint_is_compared_too(monitor: str, metrics: Any, words: str) -> None:
    better = {"raw/level0/recall@1": 0.3, "level0/recall@1": 0.4}
    assert words in list_remarks(metrics | better, {"checkpoints": {"monitor": monitor}})["worse"]


def test_both_metrics_stand_in_one_line() -> None:
    metrics = {"raw/level0/recall@1": 0.5, "level0/recall@1": 0.4, "raw/level0/map@r": 0.3, "level0/map@r": 0.2}
    (worse,) = list_remarks(metrics, MONITOR).values()
    assert "recall@1 went from 50.0 % to 40.0 %, map@r went from 30.0 % to 20.0 %; a smaller" in worse


def test_coarser_levels_that_find_less_have_a_line_of_their_own() -> None:
    metrics = {"raw/level0/map@r": 0.3, "level0/map@r": 0.5, "raw/level2/map@r": 0.615, "level2/map@r": 0.427}
    assert list_remarks(metrics, MONITOR) == {
        "coarser": "find less than before the training: level2/map@r went from 61.5 % to 42.7 %; "
        "loss=happier trains all levels"
    }


@pytest.mark.parametrize(
    "metrics",
    [
        {"raw/level0/recall@1": 0.3, "level0/recall@1": 0.4, "raw/level0/map@r": 0.3, "level0/map@r": 0.3},
        {"level0/recall@1": 0.4, "level0/map@r": 0.3},
        {"h_ap": 0.1},
        {"raw/level0/eer": 0.2, "level0/eer": 0.1},
    ],
)
def test_any_other_training_says_nothing(metrics: dict[str, float]) -> None:
    assert list_remarks(metrics, MONITOR) == {}
    assert list_remarks(metrics, {"checkpoints": {"monitor": "level0/eer"}}) == {}


def test_a_quick_run_says_so() -> None:
    assert "its metrics say nothing about a method" in list_remarks({}, {"quick": True})["quick"]
    assert list_remarks({}, {"quick": False}) == {}


@pytest.mark.parametrize(
    ("metrics", "line"),
    [
        (
            {"similarity": 0.5, "wanted_wrong_share": 0.05, "known_accepted": 0.7, "wrong_share": 0.06},
            'same the nearest from a similarity of 0.500 on, where the share of wrong "same" among the nearest is 5 % '
            'on the validation classes; here 70.0% of the nearest are "same", 6.0% of these wrongly',
        ),
        (
            {"similarity": 0.5, "wanted_fmr": 0.01, "fmr": 0.012, "fnmr": 0.4},
            "same two images from a similarity of 0.500 on, for a false match rate of 1 % on the validation classes; "
            "here 1.2% of the pairs of two classes, and 60.0% of those of one",
        ),
        (
            {"wanted_wrong_share": 0.05},
            'same no threshold: there is no similarity where the share of wrong "same" among the nearest is 5 % on the '
            "validation classes",
        ),
        ({"similarity": 0.5, "wanted_wrong_share": 0.05}, ""),  # nothing but the validation classes was tested
        ({"eer": 0.1}, ""),
    ],
)
def test_the_threshold_is_told_in_words(metrics: Any, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    _print_threshold({f"threshold/{name}": value for name, value in metrics.items()})
    assert " ".join(capsys.readouterr().out.split()) == line
