import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dml.evaluation.names import MetricDescription
from dml.report.charts import MOST_POINTS, Chart, choose_ticks, make_charts

LEVELS = ("fine", "coarse")


def points(path: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"[ML]([-\d.]+) ([-\d.]+)", path)]


def value(chart: Chart, percent: float) -> float:
    """What stands so many percent from the top, by the texts of the axis."""
    (low, at_low), (high, at_high) = ((float(tick.text), tick.position) for tick in (chart.y[0], chart.y[-1]))
    return low + (percent - at_low) / (at_high - at_low) * (high - low)


@given(st.floats(-1e4, 1e4), st.one_of(st.just(0.0), st.floats(1e-6, 1e6)))
def test_ticks_are_round_and_enclose(start: float, width: float) -> None:
    low, high = start * (width or 1), start * (width or 1) + width
    found = choose_ticks(low, high)
    step = found[1] - found[0]
    assert found[0] <= low + 1e-6 * step
    assert found[-1] >= high - 1e-6 * step
    assert 2 <= len(found) <= 8
    assert np.allclose(np.diff(found), step)
    mantissa = float(f"{step:.6e}".split("e")[0])
    assert mantissa == pytest.approx(round(mantissa), rel=1e-4)
    assert round(mantissa) in (1, 2, 5, 10)


def test_lines_show_the_values() -> None:
    history = [
        {"step": 10.0, "loss": 2.0},
        {"step": 20.0, "loss": 1.5, "val/level0/recall@1": 0.5, "val/level1/recall@1": 0.75},
        {"step": 40.0, "loss": 0.25, "val/level0/recall@1": 0.625, "val/level1/recall@1": float("nan")},
    ]
    loss, recall = make_charts(history, LEVELS, tested=20)
    assert [loss.title, recall.title] == ["Training loss", "Validation recall@1, %"]
    assert loss.marked == recall.marked == 50
    for chart, name, expected in (
        (loss, "sum", [(10, 2.0), (20, 1.5), (40, 0.25)]),
        (recall, "fine", [(20, 50.0), (40, 62.5)]),
        (recall, "coarse", [(20, 75.0)]),
    ):
        line = next(line for line in chart.curves if line.name == name)
        drawn = [(x / 100 * 40, value(chart, y)) for x, y in points(line.path)]
        assert np.allclose(drawn, expected, atol=0.01)
        assert line.last == f"{expected[-1][1]:.3g}"
        assert line.dots.count("M") == len(expected)
    assert {tick.text: tick.position for tick in recall.x}["20"] == 50


def test_each_metric_of_a_validation_has_a_chart_but_those_of_single_heads() -> None:
    names = ["level0/recall@10", "level0/recall@20", "level1/recall@10", "level0/nmi", "level1/nmi", "h_ap", "mean/ap"]
    names += ["level0/first_rank", "heads/H/level0/asi", "level0/queries_without_positives", "level7/ndcg"]
    rank = MetricDescription("first_rank", "first rank", higher_is_better=False, shown_in_percent=False)
    charts = make_charts([{"step": 1.0} | {f"val/{name}": 0.5 for name in names}], LEVELS, None, custom=[rank])
    assert {chart.title: [(curve.name, curve.last) for curve in chart.curves] for chart in charts} == {
        "Validation recall@10, %": [("fine", "50"), ("coarse", "50")],
        "Validation NMI, %": [("fine", "50"), ("coarse", "50")],
        "Validation H-AP, %": [("all levels", "50")],
        "Validation AP, %": [("mean", "50")],
        "Validation first rank": [("fine", "0.5")],
    }


def test_an_axis_of_percents_stays_within_0_and_100() -> None:
    for step, share in ((0.0, 0.5), (1.0, 0.0), (1.0, 0.004), (1.0, 0.75), (1.0, 1.0)):
        (chart,) = make_charts([{"step": step, "val/level0/recall@1": share}], LEVELS, tested=0)
        assert chart.marked is None
        ticks = [float(tick.text) for tick in chart.y]
        assert len(ticks) >= 2
        assert 0 <= ticks[0] <= 100 * share <= ticks[-1] <= 100


def test_a_step_beyond_the_axis_is_not_marked() -> None:
    assert make_charts([{"step": 1.0, "epoch": 0.0}], LEVELS, tested=1) == []
    history = [{"step": 10.0, "loss": 1.0}]
    assert [make_charts(history, LEVELS, tested)[0].marked for tested in (None, 0, 10, 11)] == [None, None, 100, None]
    history = [{"step": 10.0 * (i + 1), "loss": 1.0} for i in range(1000)]  # more points than are drawn
    assert [make_charts(history, LEVELS, tested)[0].marked for tested in (5_000, 10_000)] == [50, 100]


def test_many_points_are_averaged_in_parts() -> None:
    rng = np.random.default_rng(0)
    losses = 1 + rng.random(5000)
    losses[-1] = 4
    chart = make_charts([{"step": i + 1.0, "loss": loss} for i, loss in enumerate(losses)], LEVELS, tested=None)[0]
    (curve,) = chart.curves
    assert not curve.dots
    assert curve.last == "4"
    drawn = np.array([(x / 100 * 5000, value(chart, y)) for x, y in points(curve.path)])
    size = 5000 // MOST_POINTS
    expected = losses.reshape(MOST_POINTS, size).mean(axis=1)
    assert drawn[:, 1] == pytest.approx(expected, abs=0.001)
    assert drawn[:, 0] == pytest.approx((size + 1) / 2 + size * np.arange(MOST_POINTS), abs=0.5)
