"""docs/claims.md, and its summary in the README."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path

from dml.evaluation.intervals import Interval, mean_interval
from dml.ops.errors import InputError
from dml.ops.files import replacing
from dml.run.choices import Choices
from dml.run.claims import NAMES, Arm, Claim, Claims, Overrides
from dml.run.cost import steps
from dml.run.experiments import compose
from dml.run.stages import stages
from dml.run.verdicts import Outcome, Verdict, numbers, of_comparisons, outcomes

MARKERS = ("<!-- claims -->", "<!-- /claims -->")
FIGURES = Path("images/claims")  # below the page's folder

HEAD = """# The papers' claims, put to the test

`make claims` writes this page. {setting}

A comparison takes the difference of two trainings seed by seed, on the test classes. It is **confirmed** if the 95 %
interval of the differences' mean (Student's t) lies above 0, or above -1 point where a method is to keep up with
another; **reversed** if it lies below that; else **not confirmed**. A claim of several comparisons is confirmed if all
are, and reversed if all are. Nothing corrects for their number: of many comparisons without any difference, one in
forty would be confirmed by chance.

{runs}

{summary}

The differences are in percent points, ± half the 95 % interval. Where a side is compared with several, the one that
comes closest to it is shown here, all of them below.
"""

CHOSEN = """## Chosen on the validation classes

Alternatives were trained with seed 0 alone, and compared on the validation classes; the test classes had no part in it.
An arm that is "as" another takes what was chosen for that.
"""


def write(claims: Claims, choices: Choices, docs: Path) -> None:
    """Writes claims.md and its figures into the folder ``docs``, and the summary into the README beside the folder.

    Raises:
        InputError: if the README has no place for it.
    """
    from dml.run.claims_figure import draw  # matplotlib takes its time

    found = {claim.number: outcomes(claim, choices) for claim in claims.claims}
    for number, own in found.items():
        draw(own, docs / FIGURES / f"{number}.png")
    _replace(docs / "claims.md", page(claims, choices, found))
    readme = docs.parent / "README.md"
    _replace(readme, with_summary(readme.read_text(encoding="utf-8"), summary(claims.claims, found)))


def _replace(path: Path, text: str) -> None:
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def with_summary(readme: str, table: str) -> str:
    """A README with the table between its markers.

    Raises:
        InputError: if it hasn't both.
    """
    begin, end = MARKERS
    before, opened, rest = readme.partition(begin)
    _, closed, after = rest.partition(end)
    if not opened or not closed:
        raise InputError(f"README.md: no {begin} and {end}, between which the table of claims belongs")
    return f"{before}{begin}\n{table}\n{end}{after}"


def page(claims: Claims, choices: Choices, found: dict[int, list[Outcome]]) -> str:
    """The whole of docs/claims.md."""
    parts = [
        HEAD.format(setting=claims.setting, runs=_missing(claims, choices), summary=summary(claims.claims, found)),
        *(_section(claim, found[claim.number], choices) for claim in claims.claims),
        CHOSEN,
        _alternatives(choices.lineage(claims.used), choices),
    ]
    return "\n".join(parts)


def summary(claims: Sequence[Claim], found: dict[int, list[Outcome]]) -> str:
    """A line a claim: what it says, the paper's difference, ours, and the verdict."""
    rows = []
    for claim in claims:
        own, shown = found[claim.number], _closest(found[claim.number])
        rows.append(
            [
                str(claim.number),
                f"{claim.statement} ({claim.source})",
                "<br>".join(str(one.comparison) for one in shown),
                "<br>".join(_points(one.paper) for one in shown),
                "<br>".join(_plus_minus(one.interval) for one in shown),
                _strong(of_comparisons([one.verdict for one in own])),
            ]
        )
    return _table(["", "claim", "compared", "paper", "ours", "verdict"], rows, right=(3, 4))


def _closest(own: Sequence[Outcome]) -> list[Outcome]:
    """Of the comparisons of a side on a metric, the one whose interval reaches lowest."""

    def side(one: Outcome) -> tuple[str, str]:
        return one.comparison.better.name, one.comparison.metric

    order = {key: place for place, key in enumerate(dict.fromkeys(map(side, own)))}
    groups = groupby(sorted(own, key=lambda one: order[side(one)]), key=side)
    return [min(group, key=lambda one: _low(one.interval)) for _, group in groups]


def _low(found: Interval | None) -> float:
    """The interval's lower end, of a single run the number itself; those without come last."""
    if found is None:
        return float("inf")
    return found.mean - (found.half_width if found.runs > 1 else 0.0)


def _section(claim: Claim, own: Sequence[Outcome], choices: Choices) -> str:
    verdict = of_comparisons([one.verdict for one in own])
    compared = [
        [
            str(one.comparison),
            _points(one.paper),
            _plus_minus(one.interval),
            str(len(one.differences)),
            _strong(one.verdict),
        ]
        for one in own
    ]
    metrics = list(dict.fromkeys(one.comparison.metric for one in own))
    header = ["arm", "`experiment=claims/`…", "steps", "chosen", *(NAMES.get(metric, metric) for metric in metrics)]
    parts = [
        f"## {claim.number}. {verdict.capitalize()}",
        f"{claim.statement} ({claim.source}; the paper's numbers are those on {claim.dataset}.)",
        f"![The differences of claim {claim.number}, seed by seed]({FIGURES / f'{claim.number}.png'})",
        _table(["compared", "paper", "ours", "seeds", "verdict"], compared, right=(1, 2, 3)),
        _table(header, [_arm(arm, metrics, choices) for arm in claim.arms], right=(2, *range(4, 4 + len(metrics)))),
        *([claim.remark] if claim.remark else []),
    ]
    return "\n\n".join(parts) + "\n"


def _arm(arm: Arm, metrics: Iterable[str], choices: Choices) -> list[str]:
    experiment = arm.training.experiment.removeprefix("claims/")
    length = sum(steps(own.config) for own in stages(compose(arm.training)))
    values = [list(numbers(arm, metric, choices).values()) for metric in metrics]
    return [
        f"{arm.name}{f' ({arm.part})' if arm.part else ''}",
        _code((experiment, *arm.training.overrides)),
        str(length),
        _chosen(arm, choices),
        *(_level(mean_interval(own)) if own else "" for own in values),
    ]


def _chosen(arm: Arm, choices: Choices) -> str:
    inherited = [f"as {arm.like}"] if arm.like else []
    candidates = choices.candidates(arm)
    if not candidates or not all(one.done for one in candidates):
        return ", ".join([*inherited, *(["open"] if arm.alternatives else [])])
    best = choices.best(candidates)
    return ", ".join([*inherited, f"{_code(best.overrides)} ({100 * best.value:.1f} on val)"])


def _alternatives(arms: Iterable[Arm], choices: Choices) -> str:
    """A line an alternative."""
    rows = []
    for arm in arms:
        candidates = choices.candidates(arm)
        best = choices.best(candidates) if candidates and all(one.done for one in candidates) else None
        for one in candidates:
            value = f"{100 * one.value:.1f}" if one.done else ""
            shown = [arm.name, _code(one.overrides), NAMES.get(one.by, one.by), value]
            rows.append([*shown, "chosen" if best is not None and one == best else ""])
    return _table(["arm", "alternative", "chosen by", "on val, %", ""], rows, right=(3,)) + "\n"


def _missing(claims: Claims, choices: Choices) -> str:
    """How many runs are done, and which arms lack some."""
    runs = {arm.name: choices.runs(arm) for arm in claims.used}
    folders = {run.folder: run for own in runs.values() for run in own or ()}
    done = sum(run.done for run in folders.values())
    lacking = [name for name, own in runs.items() if own is None or not all(run.done for run in own)]
    said = f"{done} runs are done"
    return f"{said}; some are missing of {', '.join(lacking)}." if lacking else f"{said}, and none is missing."


def _points(value: float | None) -> str:
    return "–" if value is None else f"{value:+.1f}"


def _plus_minus(found: Interval | None) -> str:
    if found is None:
        return ""
    return f"{found.mean:+.1f} ± {found.half_width:.1f}" if found.runs > 1 else f"{found.mean:+.1f}"


def _level(found: Interval) -> str:
    return f"{found.mean:.1f} ± {found.half_width:.1f}" if found.runs > 1 else f"{found.mean:.1f}"


def _strong(verdict: Verdict) -> str:
    return f"**{verdict}**"


def _code(overrides: Overrides) -> str:
    return f"`{' '.join(overrides)}`"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int] = ()) -> str:
    """A Markdown table; ``right`` are the columns of numbers."""
    lines = [header, ["---:" if column in set(right) else "---" for column in range(len(header))], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
