"""Recognise columns of other names: `latency_ms` is `runtime_s` in milliseconds."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

# The column that holds a quantity in SI units, and the words by which other programs call it.
WORDS = {
    "runtime_s": "runtime latency time duration elapsed took wall t",
    "power_w": "power watts watt draw",
    "energy_j": "energy joules joule",
}
UNITS = {"runtime_s": "seconds", "power_w": "watts", "energy_j": "joules"}
# What a value in a unit is multiplied by, or divided by where that is written more plainly.
SCALES = {
    "runtime_s": {"": "", "s": "", "sec": "", "secs": "", "second": "", "seconds": "", "ms": "/1000",
                  "msec": "/1000", "millis": "/1000", "milliseconds": "/1000", "us": "/1e6", "usec": "/1e6",
                  "micros": "/1e6", "microseconds": "/1e6", "ns": "/1e9", "nanoseconds": "/1e9",
                  "min": "*60", "minutes": "*60"},
    "power_w": {"": "", "w": "", "watt": "", "watts": "", "mw": "/1000", "milliwatts": "/1000",
                "kw": "*1000"},
    "energy_j": {"": "", "j": "", "joule": "", "joules": "", "mj": "/1000", "millijoules": "/1000",
                 "uj": "/1e6", "wh": "*3600", "kwh": "*3.6e6"},
}  # fmt: skip
# Next to a quantity's word these change nothing: `avg_latency_ms`, `gpu_time_us`.
BESIDE = set("avg average mean median gpu cpu device kernel forward total measured call in per".split())
# Usual names of fields that have no letters in common.
ALIASES = {
    "m": "rows", "tokens": "rows", "batch_size": "batch rows", "bs": "batch rows",
    "n": "out_features columns", "k": "in_features inner", "in_dim": "in_features", "out_dim": "out_features",
    "input_size": "in_features", "output_size": "out_features",
    "cin": "in_channels", "cout": "out_channels", "c_in": "in_channels",
    "c_out": "out_channels", "h": "in_height", "w": "in_width", "height": "in_height", "width": "in_width",
    "heads": "query_heads", "num_heads": "query_heads", "head_dim": "head_size", "seq_len": "query_length",
    "op": "function", "name": "model function", "network": "model", "precision": "dtype", "type": "dtype",
    "pass": "phase", "hidden_size": "width", "vocab_size": "vocabulary", "numel": "elements",
}  # fmt: skip
NEAR = 0.75  # share of equal letters, from which on a name suggests a field


class Meant(NamedTuple):
    """A column of a table, the column it stands for, and the expression that gives the one from the other."""

    given: str
    column: str
    expression: str

    @property
    def mapping(self) -> str:
        """The text for `--map`, quoted for a shell where needed."""
        text = f"{self.column}={self.expression}"
        return text if re.fullmatch(r"[\w=/.]+", text) else f"'{text}'"

    @property
    def words(self) -> str:
        """`runtime_s (seconds)`."""
        unit = UNITS.get(self.column)
        return f"{self.column} ({unit})" if unit else self.column


def meant_by(given: Sequence[str], missing: Collection[str]) -> Iterator[Meant]:
    """Which columns of a table may stand for those that it lacks, each at most once, in the table's order."""
    left = list(missing)
    for name in given:
        found = _quantity(name, left) or _field(name, left)
        if found is not None:
            left.remove(found.column)
            yield found


def quantity_of(name: str) -> Meant | None:
    """The time, power or energy that a column holds by its name and unit; None where it names none."""
    return _quantity(name, [*WORDS])


def _quantity(name: str, wanted: Collection[str]) -> Meant | None:
    parts = [part for part in re.split(r"[^a-z]+", name.lower()) if part and part not in BESIDE]
    for column, words in WORDS.items():
        if column not in wanted or not parts or parts[0] not in words.split() or len(parts) > 2:
            continue
        unit = parts[1] if len(parts) == 2 else ""
        if unit in SCALES[column]:
            return Meant(name, column, f"{_spelled(name)}{SCALES[column][unit]}")
    return None


def _field(name: str, wanted: Collection[str]) -> Meant | None:
    alias = [one for one in ALIASES.get(name.lower(), "").split() if one in wanted]
    fields = [one for one in wanted if one not in WORDS]
    near = alias or difflib.get_close_matches(name.lower(), fields, n=1, cutoff=NEAR)
    return Meant(name, near[0], _spelled(name)) if near else None


def _spelled(name: str) -> str:
    """A column's name within an expression: quoted where it is not a plain word."""
    return name if name.isidentifier() else f'"{name}"'
