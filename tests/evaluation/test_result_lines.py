import pytest

from dml.evaluation.result_lines import _print_loss_of_recall


def test_a_training_that_makes_it_worse_says_so_and_what_to_try(capsys: pytest.CaptureFixture[str]):
    _print_loss_of_recall({"raw/level0/recall@1": 0.386, "level0/recall@1": 0.351})
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.startswith("worse recall@1 was 38.6% before training and is 35.1% now; a smaller optimizer.lr")
    assert "docs/own_data.md" in printed


@pytest.mark.parametrize(
    "metrics", [{"raw/level0/recall@1": 0.3, "level0/recall@1": 0.4}, {"level0/recall@1": 0.4}, {"h_ap": 0.1}]
)
def test_any_other_training_says_nothing(metrics: dict[str, float], capsys: pytest.CaptureFixture[str]):
    _print_loss_of_recall(metrics)
    assert capsys.readouterr().out == ""
