"""The findings of a data audit, as its page shows them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dml.evaluation.audit.findings import (
    BROKEN_IMAGE,
    DIVIDED_CLASS,
    DOUBTFUL_LABEL,
    ISSUES,
    MIXED_CLASSES,
    NEAR_DUPLICATE,
    ODD_IMAGE,
    SMALL_CLASS,
    AuditedImages,
    Finding,
)
from dml.report.pictures import OTHER, SAME
from dml.report.sheets import CaptionedPicture, Tiles

NEIGHBORS_SHOWN = 8
TITLES = {
    NEAR_DUPLICATE: ("Near duplicates", "Pairs of copies of one picture. drop leaves out the first, on the left."),
    DOUBTFUL_LABEL: (
        "Doubtful labels",
        "Images whose neighbors are of another class. relabel gives the suggested class, or the one in new_label. The "
        "neighbors of the image's own class have a tick.",
    ),
    MIXED_CLASSES: (
        "Classes to merge",
        "Pairs of classes whose images have each other for neighbors. same_class makes one of them.",
    ),
    DIVIDED_CLASS: ("Classes to split", "Classes that fall into two groups, one in each line."),
    SMALL_CLASS: ("Classes that are too small", "drop leaves out the class."),
    BROKEN_IMAGE: ("Broken images", "Files that are missing or can't be decoded."),
    ODD_IMAGE: ("Odd images", "Images of one color, of unusual sizes, or unlike all others."),
}


@dataclass(frozen=True)
class AuditReport:
    """What the page of an audit shows.

    ``names`` is the shown path of each image by its path in the table; ``shown`` the largest number of findings of a
    kind.
    """

    facts: Mapping[str, str]
    images: AuditedImages
    findings: Sequence[Finding]
    names: Mapping[str, str]
    shown: int
    csv_path: str


def make_finding_sections(report: AuditReport, tiles: Tiles) -> list[dict[str, Any]]:
    """Make a section for each kind of finding, also for those of which there is none; the tiles get their pictures.

    Returns:
        For each kind its "issue", "title" and "explanation", the "count" of all findings, the first "findings", and by
        "is_compact" whether two of these fit beside each other.
    """
    sections = []
    for issue in ISSUES:
        findings = [finding for finding in report.findings if finding.issue == issue]
        title, explanation = TITLES[issue]
        sections.append(
            {
                "issue": issue,
                "title": title,
                "explanation": explanation,
                "count": len(findings),
                "findings": [_show(finding, report, tiles) for finding in findings[: report.shown]],
                "is_compact": issue in (NEAR_DUPLICATE, BROKEN_IMAGE, ODD_IMAGE),
            }
        )
    return sections


def _show(finding: Finding, report: AuditReport, tiles: Tiles) -> dict[str, Any]:
    """Return the "title" of a finding, "lines" of text, the "picture" of its image, if any, and "rows" of others."""
    paths = [report.names.get(path, path) for path in (finding.path, finding.other_path) if path]
    lines = [finding.remark, *paths]
    rows = list(finding.pictures)
    picture = None
    title = finding.label or "no class"
    if finding.issue in (NEAR_DUPLICATE, DOUBTFUL_LABEL, ODD_IMAGE):
        first = rows.pop(0)
        picture = _draw(first[0], report.images, tiles)
        rows = [first[1:], *rows] if len(first) > 1 else rows
    if finding.other_label and finding.other_label != finding.label:
        title = f"{title} {'→' if finding.issue == DOUBTFUL_LABEL else 'and'} {finding.other_label}"
    compared = finding.label if finding.issue == DOUBTFUL_LABEL else None
    return {
        "title": title,
        "lines": lines if finding.issue != DIVIDED_CLASS else lines[:1],
        "picture": picture,
        "rows": [[_draw(row, report.images, tiles, compared) for row in part[:NEIGHBORS_SHOWN]] for part in rows],
    }


def _draw(row: int, images: AuditedImages, tiles: Tiles, compared: str | None = None) -> CaptionedPicture:
    """Return the picture of an image with its class; compared with the name of a class, it is marked."""
    name = images.name_class(images.labels[row])
    relation = "" if compared is None else SAME if name == compared else OTHER
    return CaptionedPicture(tiles.place(str(images.table.paths[row])), name, relation, str(images.table.split[row]))
