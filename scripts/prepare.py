"""``python scripts/prepare.py dataset=sop`` does what ``dml prepare dataset=sop`` does."""

from dml.__main__ import run_command

if __name__ == "__main__":
    run_command("prepare")
