"""Report of a training: a table by layer kind, warnings, and one sentence at the end."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from neuralpower.data.schema import FEWEST_ROWS
from neuralpower.data.screening import SHORTEST_WITH_POWER_S, Rejected, summarised, without_values
from neuralpower.learn.keys import Key, key_name
from neuralpower.learn.regressor import Regressor
from neuralpower.learn.train import Trained
from neuralpower.report.grid import grid, listed
from neuralpower.report.number_format import counted
from neuralpower.report.tables import score_cells

WIDEST = 24  # letters of a group
MOST_ALIKE = 2  # lines of one form that are printed without -v
MOST_REASONS = 3  # for skipped rows, in one line
LARGE = 0.25  # typical error above which a warning follows
NOISY = 0.3  # relative standard deviation of one measurement, above which a warning follows
DISAGREE = 0.3  # mean error of held-out networks, above which the tables are probably not of one device
HEADINGS = (
    "typical error: half of the held-out rows have a smaller error; "
    "inside bounds: held-out rows within their 90 % bounds"
)


class Errors(NamedTuple):
    """Errors of some regressors on held-out rows; shares, not percent."""

    rows: int
    typical: float  # the median error of the regressor in the middle, by rows
    inside: float


def errors_of(regressors: Iterable[Regressor]) -> Errors | None:
    """Errors of all regressors together; None if no held-out error is known."""
    scores = [(r.scores.median if r.trees else r.scores.median_base, r.scores) for r in regressors]
    known = sorted(
        (one for one in scores if np.isfinite([one[0], one[1].inside]).all()), key=lambda one: one[0]
    )
    if not known:
        return None
    rows = np.array([score.rows for _, score in known])
    typical = known[int(np.searchsorted(np.cumsum(rows), rows.sum() / 2))][0]
    return Errors(int(rows.sum()), typical, float(np.average([s.inside for _, s in known], weights=rows)))


def kinds_table(trained: Trained) -> str:
    """A line for each layer kind: rows, typical error and share inside bounds, and of power, if trained."""
    p = trained.predictor
    kinds = list(dict.fromkeys(key[0] for key in p.regressors))
    columns = {
        "kind": lambda kind: kind,
        "rows": lambda kind: str(sum(r.scores.rows for r in _of(kind, p.regressors))),
        "typical error": lambda kind: _shown(errors_of(_of(kind, p.regressors)), "typical"),
        "inside bounds": lambda kind: _shown(errors_of(_of(kind, p.regressors)), "inside"),
    }
    if p.power:
        powers = p.power
        columns["error of power"] = lambda kind: _shown(errors_of(_of(kind, powers)), "typical")
    return f"{listed(kinds, columns)}\n({HEADINGS})"


def _of(kind: str, regressors: Mapping[Key, Regressor]) -> list[Regressor]:
    return [regressor for key, regressor in regressors.items() if key[0] == kind]


def _shown(errors: Errors | None, name: str) -> str:
    return "-" if errors is None else _percent(getattr(errors, name), 0 if name == "inside" else 1)


def _percent(share: float, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f} %"


def regressors_table(trained: Trained) -> str:
    """Rows, degree, alpha, terms kept, and errors on held-out folds of each regressor."""
    lost = Counter(row.kind for row in trained.rejected)
    rows = []
    p = trained.predictor
    for target, regressors in (("", p.regressors), (" W", p.power or {})):
        for (kind, dtype, phase, group), r in regressors.items():
            name = group if len(group) <= WIDEST else group[: WIDEST - 3] + "..."
            left_out = str(lost.pop(kind, ""))  # known by kind: shown in the row of its first group
            about = [kind + target, name, dtype, phase, str(r.scores.rows), left_out]
            fit = [r.basis(), str(r.degree), f"{r.alpha:.0e}", str(len(r.terms))]
            rows.append([*about, *fit, *score_cells(r)])
    header = ["kind", "group", "dtype", "phase", "rows", "skipped", "base", "degree", "alpha", "terms"]
    header += ["MAPE", "RMSPE", "median base", "base+residual", "bias", "beyond", "inside"]
    return grid(header, rows, left=4)


def sentence(trained: Trained) -> str:
    """One sentence: the predictor's typical error, and whether power was trained."""
    if trained.correction is not None and not trained.predictor.regressors:
        return f"Mean error on held-out networks: {_percent(trained.correction.after)}. {_power(trained)}"
    time = errors_of(trained.predictor.regressors.values())
    error = "unknown (too few rows)" if time is None else _percent(time.typical)
    return f"Typical error on held-out rows: {error}. {_power(trained)}"


def _power(trained: Trained) -> str:
    power, usable = trained.predictor.power, trained.powers
    if power:
        errors = errors_of(power.values())
        return f"Power trained{'' if errors is None else f', typical error {_percent(errors.typical)}'}."
    if trained.predictor.trained_on > 1:
        return "Power not trained: predictors of several devices only predict time."
    if not usable:
        return "Power not trained: no row has power_w or energy_j."
    rows = counted(max(usable.values()), "row")
    of_a_kind = " of a kind" if len(usable) > 1 else ""
    return (
        f"Power not trained: {rows}{of_a_kind} of {SHORTEST_WITH_POWER_S * 1e6:g} us or more, "
        f"{FEWEST_ROWS} needed."
    )


def warnings_of(trained: Trained) -> Iterator[str]:
    """Warnings about the predictor: noise, large errors, tables that disagree."""
    if trained.noise is not None and trained.noise > NOISY:
        yield (
            f"Warning: the data are noisy: one measurement varies by {_percent(trained.noise, 0)} (median). "
            "Fix: stop other work on the machine and measure again."
        )
    p = trained.predictor
    found = {
        f"{kind}{what}": errors_of(_of(kind, regressors))
        for what, regressors in (("", p.regressors), (" (power)", p.power or {}))
        for kind in dict.fromkeys(key[0] for key in regressors)
    }
    large = {kind: e.typical for kind, e in found.items() if e is not None and e.typical > LARGE}
    if large:
        worst = sorted(large, key=lambda kind: -large[kind])
        named = ", ".join(f"{kind} {_percent(large[kind], 0)}" for kind in worst)
        yield (
            f"Warning: typical errors are large: {named}. "
            "Fix: measure more rows, and check units and fields (neuralpower dataset check)."
        )
    c = trained.correction
    if c is not None and c.after > DISAGREE:
        yield (
            f"Warning: whole networks lie {_percent(c.after, 0)} from their layers. "
            "Fix: check that both measure one pass, on this device, in seconds."
        )


def notes_of(trained: Trained, verbose: bool) -> Iterator[str]:
    """Skipped rows, unused data and why, skipped groups; many similar ones are one line with a count."""
    if trained.correction is not None:
        c = trained.correction
        gain = f"held-out networks: mean error {_percent(c.before)} before, {_percent(c.after)} after"
        yield f"corrected with {c.rows} whole networks; {gain}"
    rejected, skipped = [*summarised(trained.rejected)], [*skipped_lines(trained, verbose)]
    yield from rejected if verbose or len(rejected) <= 1 else (_rejected(trained.rejected),)
    yield from trained.doubts if verbose else alike(trained.doubts)
    groups = f"{len(skipped)} groups skipped: fewer than {FEWEST_ROWS} rows each; -v lists them"
    yield from skipped if verbose or len(skipped) <= 1 else (groups,)


def _rejected(rows: Sequence[Rejected]) -> str:
    """The rows that were not used, with their most frequent reasons, in one line."""
    reasons = Counter(without_values(row.reason) for row in rows).most_common()
    shown = [f"{reason} ({count})" for reason, count in reasons[:MOST_REASONS]]
    if len(reasons) > MOST_REASONS:
        shown.append(f"other reasons ({sum(count for _, count in reasons[MOST_REASONS:])})")
    return f"{counted(len(rows), 'row')} skipped: {', '.join(shown)}; -v lists them"


def skipped_lines(trained: Trained, pooled: bool = True) -> Iterator[str]:
    """A line per group with too few rows; those `pooled` with others of their kind come last."""
    last = []
    for key, rows in trained.skipped.items():
        near, exact = trained.predictor.own.lookup.of(key)
        if near and exact and near[1] == key[1]:
            last.append(f"{key_name(key)}: {counted(rows, 'row')}; trained together, as {near[3]}")
        else:
            yield f"{key_name(key)}: skipped, {counted(rows, 'row')}; {FEWEST_ROWS} needed."
    yield from last if pooled else ()


def alike(lines: Sequence[str]) -> Iterator[str]:
    """The lines; more than MOST_ALIKE that differ only in names and numbers are the first, with a count."""
    groups: dict[str, list[str]] = {}
    for line in lines:
        form = re.sub(r"\d[\d.]*", "#", without_values(line))
        form = re.sub(r"#(?:, #)*(?:, \.\.\.)?", "#", form)
        form = re.sub(r"^(?:[\w#.+-]+(?: [\w# ,+.-]*)?(?: \([\w, #]*\))?: )+", "", form).replace(
            "rows", "row"
        )
        groups.setdefault(form, []).append(line)
    for some in groups.values():
        if len(some) <= MOST_ALIKE:
            yield from some
        else:
            yield f"{some[0]} ({len(some) - 1} more like it; -v lists them)"
