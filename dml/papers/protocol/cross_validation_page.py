"""docs/protocol.md: the results of the protocol, and how to read them."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from pathlib import Path

from dml.ops.filesystem.files import write_text
from dml.ops.text.text_tables import markdown_table
from dml.papers.protocol.cross_validation import TESTED, CrossValidation, Method
from dml.papers.protocol.cross_validation_results import MethodResult, ProtocolResult
from dml.papers.protocol.search_spaces import RATES
from dml.papers.training_facts import describe_training
from dml.report.provenance import join_facts
from dml.report.statistics import ClassSums, adjust_p_values, bootstrap_p_value, mean_interval

RESAMPLES = 10_000
"""The number of draws of the test classes for a p-value."""
LEVEL = 0.05
"""The level below which an adjusted p-value counts as a difference."""
METRICS = {"map@r": "MAP@R", "recall@1": "recall@1"}
MINUS = "−"

HEAD = """# Protocol

`dml protocol` writes this page. Here it was called as

```bash
{command}
```

It compares losses as *A Metric Learning Reality Check* (Musgrave et al., 2020) and *Unbiased Evaluation of Deep Metric
Learning Algorithms* (Fehérvári et al., 2019) ask for:

- **The search sees no test class.** The training classes of `{dataset}` are divided into {folds} folds. A configuration
  is trained {folds} times, each time with another fold as its validation classes. Its value is the mean over the folds
  of MAP@R of the best validation.
- **Every loss has the same budget.** Optuna (TPE, seeded) proposes {trials} configurations of each loss: its rate and
  its main parameter. [The last table](#every-configuration-that-was-tried) has them all.
- **The test classes are looked at once**, with the best configuration of each loss: its {folds} models are trained
  {seeds}, and tested.
- **Single models and ensembles are apart.** An ensemble joins the embeddings of the {folds} models of one seed, each
  scaled to unit length: two images are compared by the mean of the models' cosines. It costs {folds} models, and its
  embedding is {folds} times as long.

How to read the tables: metrics are in percent, of {queries:,} queries of {classes:,} test classes. The interval in
brackets holds 95 % of 2,000 draws of the test classes (bootstrap; queries of one class are not independent): it says
how much another set of classes could change the number. **sd** is the standard deviation of MAP@R between the tested
models.

In the matrices a cell is the loss of its row less that of its column, in points, on the same draws of the classes
(paired). Its p-value is of {resamples:,} draws, after Holm's correction for all pairs of the matrix. **Bold** is below
{level}: the test tells the two losses apart. Any other difference is no result. None of this covers the choice of the
configuration, which another search could have made otherwise.
"""


def write_protocol_page(result: ProtocolResult, docs: Path) -> None:
    """Write protocol.md into the folder ``docs``."""
    methods = sorted(result.methods, key=lambda method: -method.single.mean("map@r"))
    facts = {f"`{method.loss}`": _describe(result.setting, method) for method in methods}
    joined = {
        name: values | {"vector": f"{result.setting.folds} times {values['vector']}"} for name, values in facts.items()
    }
    parts = [_render_head(result), _render_kind("Single models", methods, lambda method: method.single, facts)]
    parts += [_render_kind("Ensembles of the folds", methods, lambda method: method.ensemble, joined)]
    parts += [_render_cost(methods), _render_tried(methods)]
    write_text(docs / "protocol.md", "\n".join(parts))


def _render_head(result: ProtocolResult) -> str:
    setting, first = result.setting, result.methods[0]
    values = {
        "losses": ",".join(method.loss for method in result.methods),
        "dataset": setting.dataset,
        "folds": setting.folds,
        "trials": setting.trials,
        **({"seeds": setting.seeds} if setting.seeds > 1 else {}),
        **({"rates": "{:g},{:g}".format(*setting.rates)} if setting.rates != RATES else {}),
    }
    words = [f"{key}={value}" for key, value in values.items()]
    options = [f"--set {shlex.quote(override)}" for override in setting.overrides]
    return HEAD.format(
        command=" \\\n    ".join([f"dml protocol {' '.join(words)}", *options]),
        dataset=setting.dataset,
        folds=setting.folds,
        trials=setting.trials,
        seeds="once more" if setting.seeds == 1 else f"with {setting.seeds} seeds",
        queries=sum(first.single.counts),
        classes=len(first.single.counts),
        resamples=RESAMPLES,
        level=LEVEL,
    )


def _describe(setting: CrossValidation, method: MethodResult) -> dict[str, str]:
    """Return what the metrics of the models of a method are of, as their configuration says.

    What was searched, a rate and a parameter of the loss, makes no difference to it.
    """
    training, *_ = setting.list_trainings(Method(method.loss, ()), {}, TESTED)
    return describe_training(training)


def _render_kind(
    head: str,
    methods: Sequence[MethodResult],
    choose_test: Callable[[MethodResult], ClassSums],
    facts: Mapping[str, Mapping[str, str]],
) -> str:
    tests = {method.loss: choose_test(method) for method in methods}
    models = len(next(iter(tests.values())).sums["map@r"])
    rows = [
        [
            f"`{method.loss}`",
            " ".join(f"`{key}={value}`" for key, value in method.best.proposal.items()),
            *(_format_metric(tests[method.loss], metric) for metric in METRICS),
            _format_deviation(tests[method.loss]),
        ]
        for method in methods
    ]
    header = ["loss", "best configuration", *METRICS.values(), "sd"]
    number = f"The mean of {models} models." if models > 1 else "One ensemble of each loss."
    parts = [f"## {head}\n\n{number}\n", markdown_table(header, rows, right=range(2, 5)), "", join_facts(facts), ""]
    if len(methods) > 1:
        for metric, label in METRICS.items():
            parts += [f"{label}, row less column:\n", render_matrix(tests, metric), ""]
    return "\n".join(parts)


def _format_metric(test: ClassSums, metric: str) -> str:
    low, high = test.interval(metric)
    return f"{100 * test.mean(metric):.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def _format_deviation(test: ClassSums) -> str:
    means = test.run_means("map@r")
    return f"{100 * mean_interval(means).deviation:.1f}" if len(means) > 1 else "–"


def compare_pairs(tests: dict[str, ClassSums], metric: str) -> dict[tuple[str, str], float]:
    """Compute the p-value of each pair of losses, corrected for the number of pairs -> {(loss, other loss): p}.

    Args:
        tests: {loss: its test}, all on the same queries.
        metric: name of the metric.
    """
    pairs = list(combinations(tests, 2))
    p_values = [bootstrap_p_value(tests[first].draw_means(metric, tests[second], RESAMPLES)) for first, second in pairs]
    return dict(zip(pairs, adjust_p_values(p_values), strict=True))


def render_matrix(tests: dict[str, ClassSums], metric: str) -> str:
    """Render the differences of all pairs of losses with their corrected p-values; bold ones are significant."""
    p_values = compare_pairs(tests, metric)
    rows = []
    for first, test in tests.items():
        cells = [f"`{first}`"]
        for second, other in tests.items():
            if first == second:
                cells.append("")
                continue
            p_value = p_values.get((first, second), p_values.get((second, first), 1.0))
            cells.append(_format_difference(test.mean(metric) - other.mean(metric), p_value))
        rows.append(cells)
    return markdown_table(["", *(f"`{loss}`" for loss in tests)], rows, right=range(1, len(tests) + 1))


def _format_difference(difference: float, p_value: float) -> str:
    p_text = "p < 0.001" if p_value < 0.001 else f"p = {p_value:.3f}"
    text = f"{100 * difference:+.1f} ({p_text})".replace("-", MINUS)
    return f"**{text}**" if p_value < LEVEL else text


def _render_cost(methods: Sequence[MethodResult]) -> str:
    rows = []
    for method in methods:
        trainings = sum(len(tried.values) for tried in method.tried)
        seconds = sum(tried.seconds for tried in method.tried)
        tested = len(method.single.sums["map@r"])
        rows.append(
            [
                f"`{method.loss}`",
                f"{trainings}",
                f"{seconds / 60:.1f}",
                f"{tested}",
                f"{method.seconds / 60:.1f}",
                f"{(seconds + method.seconds) / (trainings + tested):.1f}",
            ]
        )
    header = ["loss", "trainings of the search", "minutes", "tested trainings", "minutes", "seconds a training"]
    table = markdown_table(header, rows, right=range(1, len(header)))
    note = (
        "From the start of a training to its end, whatever else the machine does; one that was interrupted counts\n"
        "from where it went on."
    )
    return f"## Cost\n\n{note}\n\n{table}\n"


def _render_tried(methods: Sequence[MethodResult]) -> str:
    rows = []
    for method in methods:
        for number, tried in enumerate(method.tried, 1):
            value = f"{100 * tried.value:.2f}"
            rows.append(
                [
                    f"`{method.loss}`",
                    f"{number}",
                    " ".join(f"`{key}={proposed}`" for key, proposed in tried.proposal.items()),
                    f"**{value}**" if tried is method.best else value,
                    " ".join(f"{100 * fold:.1f}" for fold in tried.values),
                    f"{tried.seconds:.0f}",
                ]
            )
    header = ["loss", "trial", "configuration", "MAP@R", "of each fold", "seconds"]
    searched = "\n".join(f"- `{method.loss}`: {'; '.join(method.ranges)}" for method in methods)
    return (
        "## Every configuration that was tried\n\nWhat was searched:\n\n"
        f"{searched}\n\nMAP@R of the best validation, in percent; the best configuration of each loss is bold.\n\n"
        f"{markdown_table(header, rows, right=(1, 3, 4, 5))}\n\n"
        "[protocol.json](protocol.json) holds all of this, and the sums of every tested model and class:\n"
        "`dml protocol show` computes this page from it, without any training.\n"
    )
