"""The manifests of saved models and indexes, written anew after a change, as a stranger can do it."""

import json
from pathlib import Path
from typing import Any

from dml.runtime.reading import CHECKSUMS, file_checksum, write_manifest


def seal(manifest: Path, **changed: Any) -> None:
    """Write model.json or index.json, perhaps with other values, with the checksums that the files have now."""
    values = json.loads(manifest.read_text())
    names = [name for name in values.pop(CHECKSUMS) if name != manifest.name]
    checksums = {name: file_checksum(manifest.parent / name) for name in names}
    write_manifest(manifest, values | changed, checksums)
