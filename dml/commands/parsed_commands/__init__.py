"""The commands whose arguments `argparse` parses; Hydra composes those of `dml.commands.hydra_command`."""
