"""The command line: what happens before, around and after a job."""

from dml.commands.hydra_command import main

__all__ = ["main"]
