"""``python scripts/report.py RUN`` does what ``dml report RUN`` does."""

from dml.__main__ import run_command

if __name__ == "__main__":
    run_command("report")
