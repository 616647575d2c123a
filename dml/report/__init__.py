"""The reports: what turns metrics and neighbors into tables, pictures and pages; ``dml.report(...)`` writes one."""

import sys
from types import ModuleType
from typing import Any


class _CallablePackage(ModuleType):
    def __call__(self, *arguments: Any, **options: Any) -> Any:
        from dml.report.page import report

        return report(*arguments, **options)


sys.modules[__name__].__class__ = _CallablePackage
