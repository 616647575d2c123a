"""``python scripts/compare.py RUNS`` does what ``dml compare RUNS`` does."""

from dml.__main__ import run_command

if __name__ == "__main__":
    run_command("compare")
