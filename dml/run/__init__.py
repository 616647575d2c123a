from dml.run.cli import COMMANDS, main

__all__ = ["COMMANDS", "main"]
