"""The command line: what happens before, around and after a job."""

from dml.commands.hydra_command import COMMANDS, main

__all__ = ["COMMANDS", "main"]
