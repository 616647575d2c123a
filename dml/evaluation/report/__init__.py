"""The report of a run, of two runs, or of an audit: one HTML file."""

from dml.evaluation.report.audited_data import MOST_SHOWN, AuditReport
from dml.evaluation.report.page import audit_report, comparison_report, run_report, search_report
from dml.evaluation.report.reported_run import ReportedRun, collect_versions, read_run
from dml.evaluation.report.searches import FoundImage, ImageSearches

__all__ = [
    "MOST_SHOWN",
    "AuditReport",
    "FoundImage",
    "ImageSearches",
    "ReportedRun",
    "audit_report",
    "collect_versions",
    "comparison_report",
    "read_run",
    "run_report",
    "search_report",
]
