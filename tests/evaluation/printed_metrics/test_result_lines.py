import pytest

from dml.evaluation.printed_metrics.result_lines import _print_loss_of_recall


def test_a_training_that_makes_it_worse_says_so_and_what_to_try(capsys: pytest.CaptureFixture[str]):
    _print_loss_of_recall({"raw/level0/recall@1": 0.386, "level0/recall@1": 0.351, "step": 400})
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.startswith(
        "worse recall@1 is 38.6% of the backbone's own features and 35.1% after the training; a smaller optimizer.lr"
    )
    assert "docs/own_data.md" in printed


def test_untrained_heads_that_find_less_than_the_backbone_are_told(capsys: pytest.CaptureFixture[str]):
    _print_loss_of_recall({"raw/level0/recall@1": 0.812, "level0/recall@1": 0.688, "step": 0})
    printed = " ".join(capsys.readouterr().out.split())
    assert (
        "81.2% of the backbone's own features and 68.8% of the untrained heads; more numbers (model.embed_dim)"
        in printed
    )


@pytest.mark.parametrize(
    "metrics", [{"raw/level0/recall@1": 0.3, "level0/recall@1": 0.4}, {"level0/recall@1": 0.4}, {"h_ap": 0.1}]
)
def test_any_other_training_says_nothing(metrics: dict[str, float], capsys: pytest.CaptureFixture[str]):
    _print_loss_of_recall(metrics)
    assert capsys.readouterr().out == ""
