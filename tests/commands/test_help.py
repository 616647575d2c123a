"""``--help``: the groups in the order in which a user needs them, on a terminal of 80 columns."""

import re

import pytest
from conftest import Here


@pytest.mark.parametrize("command", ["train", "evaluate", "prepare", "inspect", "audit", "shift"])
def test_help_lists_the_groups_in_the_order_of_need(
    here: Here, capfd: pytest.CaptureFixture[str], command: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        here(command, "--help")
    assert not ended.value.code
    printed = capfd.readouterr().out
    listed = printed.partition("== Configuration groups ==\n")[2].partition("== Config ==")[0]
    groups = re.findall(r"^([\w/.]+): ", listed, flags=re.MULTILINE)
    assert groups[:6] == ["dataset", "model", "loss", "transform", "sampler", "optimizer"]
    experiments = [group for group in groups if group.startswith("experiment/")]
    assert {"callbacks", "logger", "sweep"} < {*groups}
    assert groups[-len(experiments) :] == experiments
    assert "experiment/rll/I: rll_simpler\n" in listed
    assert not any(group.endswith("/settings") for group in experiments)  # they are parts of experiments
    assert max(map(len, listed.splitlines())) <= 80
    assert "\nseed: 0\n" in printed
