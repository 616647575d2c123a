from dml.commands.hydra_command import COMMANDS, main

__all__ = ["COMMANDS", "main"]
