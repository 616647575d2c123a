from dml.evaluation.report.page import comparison_report, run_report
from dml.evaluation.report.reported_run import ReportedRun, collect_versions, read_run

__all__ = ["ReportedRun", "collect_versions", "comparison_report", "read_run", "run_report"]
