import pytest
from printed_tables import print_lines

from dml.evaluation.names import MetricDescription, choose_first_metric
from dml.report.console import metric_table, summary_table

NAMES = ("raw features", "head L", "head M", "head H", "all heads")
METRICS = ("recall@1", "recall@2", "recall@4", "recall@8", "nmi")
ROWS = {
    name: {f"level{i}/{m}": 0.1 * i + 0.01 * j + 0.001 * k for i in range(3) for j, m in enumerate(METRICS)}
    for k, name in enumerate(NAMES)
}


def test_one_level_shows_percent_under_short_titles() -> None:
    lines = print_lines(metric_table(ROWS, levels=("emoji",)))
    assert lines[0].split() == ["%", "R@1", "R@2", "R@4", "R@8", "NMI"]
    assert lines[-1].split() == ["all", "heads", "0.4", "1.4", "2.4", "3.4", "4.4"]


def test_each_level_is_a_section_and_all_fit_80_columns() -> None:
    perfect = {name: dict.fromkeys(values, 1.0) for name, values in ROWS.items()}
    table = metric_table(perfect, levels=("emoji", "subgroup", "group"), title="Unseen half")
    lines = print_lines(table)
    assert lines == print_lines(table, width=200)
    assert lines[0].strip() == "Unseen half"
    assert sum(line.count("100.0") for line in lines) == 3 * 5 * 5
    assert [line.split()[0] for line in lines if "raw features" in line] == ["emoji", "subgroup", "group"]


def test_values_that_are_no_fractions_are_shown_as_they_are() -> None:
    custom = [MetricDescription("first_rank", "First", shown_in_percent=False)]
    rows = {"raw": {"level0/recall@1": 0.5, "level0/first_rank": 12.34567}}
    lines = print_lines(metric_table(rows, metrics=("recall@1", "first_rank", "ami"), custom=custom))
    assert lines[0].split() == ["%", "R@1", "First", "AMI"]
    assert lines[-2].split() == ["raw", "50.0", "12.35", "–"]
    assert lines[-1] == "not in percent: First"


def test_a_benchmark_without_metrics_at_level_0_is_shown() -> None:
    """Its lists are levels 1 and 2, and the finest level is that of the training alone."""
    metrics = {f"level{level}/{name}": 0.01 * level for level in (1, 2) for name in ("recall@1", "map@1000", "mmp5")}
    lines = [line.split() for line in print_lines(summary_table(metrics, ["class", "cars", "sop"], ["H"]))]
    assert lines[0] == ["level", "%", "R@1", "mAP@1000", "mMP@5"]
    assert [line for line in lines if "H" in line] == [["cars", "H", *3 * ["1.0"]], ["sop", "H", *3 * ["2.0"]]]
    assert choose_first_metric(metrics) == "level1/recall@1"


def test_h_ap_of_all_levels_stands_beside_the_finest_where_labels_have_levels() -> None:
    level = ("recall@1", "recall@2", "recall@4", "recall@8", "ap", "map@r", "nmi")
    metrics = {f"{part}level{i}/{name}": 1.0 for part in ("raw/", "heads/L/", "") for i in range(3) for name in level}
    metrics |= {"raw/h_ap": 0.25, "heads/L/h_ap": 0.5, "h_ap": 0.75, "asi": 0.1}
    lines = print_lines(summary_table(metrics, ["emoji", "subgroup", "group"], ["L", "H"]))
    assert lines[0].split() == ["level", "%", "R@1", "R@2", "R@4", "R@8", "MAP@R", "NMI", "H-AP"]
    assert [line.split()[-1] for line in lines if "100.0" in line] == ["25.0", "75.0", *4 * ["–"]]
    flat = {name: value for name, value in metrics.items() if "level1" not in name and "level2" not in name}
    assert "H-AP" not in "".join(print_lines(summary_table(flat, ["emoji"], ["L", "H"])))


@pytest.mark.parametrize(
    ("names", "columns"),
    [
        (("recall@1", "recall@10", "ap", "asi"), ["R@1", "R@10", "AP", "ASI"]),
        (
            ("recall@1", "recall@2", "recall@4", "recall@8", "ap", "map@r", "h_ap", "ndcg", "asi", "nmi"),
            ["R@1", "R@2", "R@4", "R@8", "AP", "ASI", "MAP@R"],
        ),
    ],
)
def test_lists_of_levels_end_with_the_means_over_the_levels(names: tuple[str, ...], columns: list[str]) -> None:
    """DyML's tests, whose protocol (HAPPIER, Table 2) gives mean AP, mean ASI and mean R@1."""
    scopes = {"level0": 0.1, "level1": 0.2, "level2": 0.6, "mean": 0.3}
    metrics = {f"{part}{scope}/{name}": v for part in ("raw/", "") for scope, v in scopes.items() for name in names}
    lines = [line.split() for line in print_lines(summary_table(metrics, ["fine", "middle", "coarse"], ["H"]))]
    assert lines[0] == ["level", "%", *columns]
    assert lines[-2:] == [["mean", "before", *len(columns) * ["30.0"]], ["H", *len(columns) * ["30.0"]]]
