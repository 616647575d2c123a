"""The folders that configurations come from: the project's ``conf/``, and the user's on ``hydra.searchpath``."""

import sys
from pathlib import Path
from typing import Any

from dml.run.arguments import quote

FILE = "file://"
PACKAGE = Path(__file__).resolve().parents[1]

IS_INSTALLED = (PACKAGE / "conf").is_dir()
"""Whether the package was built into a wheel, which holds its configurations (setup.py)."""

CONF = PACKAGE / "conf" if IS_INSTALLED else PACKAGE.parent / "conf"
"""The project's configurations: in an installed package, or at the top of a checkout."""


def search_path_overrides(hydra: Any) -> list[str]:
    """The override that gives another run the user's folders of configurations; none if there are none.

    Hydra keeps no override of its own keys with a run.

    Args:
        hydra: the configuration below ``hydra``.

    Returns:
        ``hydra.searchpath=[...]`` with absolute paths, as another run may be started in another folder; or nothing.
    """
    folders = [_absolute(str(folder)) for folder in hydra.get("searchpath") or ()]
    return [f"hydra.searchpath=[{','.join(quote(folder) for folder in folders)}]"] if folders else []


def _absolute(folder: str) -> str:
    scheme, separator, path = folder.partition("://")
    if not separator:
        return f"{FILE}{Path(folder).resolve()}"
    return f"{FILE}{Path(path).resolve()}" if scheme == "file" else folder


def import_from_working_folder() -> None:
    """Lets ``_target_`` name modules in the working folder, behind all others, however the command was started.

    ``python -m dml`` alone finds them by itself. Like there, ``python -P`` and PYTHONSAFEPATH=1 turn it off.
    """
    folder = str(Path.cwd())
    if not sys.flags.safe_path and folder not in sys.path:
        sys.path.append(folder)
