from dml.evaluation.report.page import comparison_report, run_report
from dml.evaluation.report.run import Run, read_run, versions

__all__ = ["Run", "comparison_report", "read_run", "run_report", "versions"]
