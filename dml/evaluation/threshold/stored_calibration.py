"""The threshold and the probabilities, as metrics.json and the metrics of a saved model have them."""

from collections.abc import Mapping
from dataclasses import asdict, fields

from dml.evaluation.names import CALIBRATION_PREFIX, format_percent
from dml.metrics.pair_calibration import Calibration

RELIABILITY = "reliability"
"""The name of the reliability curve of probabilities as they are, each pair counting once."""

RELIABILITY_BALANCED = "reliability_balanced"
"""The name of that of probabilities for as many pairs of one class as of different classes."""


def name_values(calibration: Calibration) -> dict[str, float]:
    """Return the values of the function by their names without `THRESHOLD_PREFIX`: calibration_slope and so on."""
    return {f"{CALIBRATION_PREFIX}{name}": value for name, value in asdict(calibration).items()}


def find_calibration(metrics: Mapping[str, float]) -> Calibration | None:
    """Find the function in metrics whose names lack `THRESHOLD_PREFIX`; None if they are of a test that fitted none."""
    values = {field.name: metrics.get(f"{CALIBRATION_PREFIX}{field.name}") for field in fields(Calibration)}
    known = {name: float(value) for name, value in values.items() if value is not None}
    is_usable = len(known) == len(values) and 0.0 < known["prior"] < 1.0  # a saved model may be somebody else's
    return Calibration(**known) if is_usable else None


def describe_choice(metrics: Mapping[str, float]) -> str:
    """Describe which threshold was chosen, as the end of a sentence, by metrics without `THRESHOLD_PREFIX`."""
    if "wanted_fmr" in metrics:
        return f"for a false match rate of {format_percent(metrics['wanted_fmr'])} %"
    if "wanted_wrong_share" in metrics:
        return f'where the share of wrong "same" among the nearest is {format_percent(metrics["wanted_wrong_share"])} %'
    return "for equal rates of both errors"  # an option of older versions
