"""``--help`` of the commands that Hydra composes."""

import pytest
from conftest import Here

from dml.commands.hydra_command import JOBS
from dml.run.config_folders import CONF


@pytest.mark.parametrize("command", JOBS)
def test_help_has_examples_and_a_comment_for_each_key(
    here: Here, capfd: pytest.CaptureFixture[str], command: str
) -> None:
    here(command, "loss=nra", "-h")  # and nothing is run
    examples, _, keys = capfd.readouterr().out.partition("\n\nChoices and values, with their defaults")
    assert "#" not in examples
    assert examples.count(f"\ndml {command}") >= 5
    lines = (CONF / f"{command}.yaml").read_text().splitlines()
    shown = lines[lines.index("defaults:") + 1 : lines.index("hydra:")]
    assert keys.splitlines()[1:] == "\n".join(shown).rstrip().splitlines()
