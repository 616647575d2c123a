"""``dml train loss=rll`` and ``python -m dml train loss=rll``: what ``python train.py loss=rll`` does, anywhere."""

import sys

from dml.run import COMMANDS, main

USAGE = f"dml {{{'|'.join(COMMANDS)}}} [OVERRIDES]; dml COMMAND --help lists the configuration groups"


def run_command() -> None:
    """Run the command that the first argument names; what isn't one ends with one line and exit code 2."""
    command = sys.argv[1] if len(sys.argv) > 1 else ""
    if command in ("-h", "--help"):
        sys.stdout.write(f"{USAGE}\n")
    elif command in COMMANDS:
        main(command, is_named=True)
    else:
        sys.stderr.write(f"error: {command or 'no command'}: {USAGE}\n")
        sys.exit(2)


if __name__ == "__main__":
    run_command()
