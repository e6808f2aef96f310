"""Carbon intensity of electricity by country, and from tables that users bring; g CO2e per kWh.

intensity.csv is adapted from CodeCarbon's; its licence and attribution are in the same folder. Nothing is
downloaded.
"""

from __future__ import annotations

import csv
import datetime
import functools
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neuralpower.errors import InputError, first_line, unknown
from neuralpower.files.json_files import read_text
from neuralpower.files.paths import is_file

TABLE = Path(__file__).with_name("intensity.csv")
OLDEST_YEARS = 5  # of an entry without a warning
GRAMS_OF_LB_PER_MWH = 0.45359237  # of WattTime's unit, in g per kWh
# How a column of a user's table begins, and what its unit is in g per kWh: electricityMaps; WattTime.
COLUMNS = {
    "Carbon intensity gCO₂eq/kWh (Life cycle)": 1.0,
    "Carbon Intensity gCO₂eq/kWh (LCA)": 1.0,
    "Carbon intensity gCO₂eq/kWh (direct)": 1.0,
    "Carbon Intensity gCO₂eq/kWh (direct)": 1.0,
    "MOER": GRAMS_OF_LB_PER_MWH,
}


@dataclass(frozen=True)
class Intensity:
    """What a kilowatt-hour of a region emits, and how that is known."""

    grams_per_kwh: float
    source: str  # with its year
    warning: str = ""


@functools.cache
def _countries() -> Mapping[str, Mapping[str, str]]:
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = [*csv.DictReader(file)]
    return {row[code]: row for code in ("iso3", "iso2") for row in rows}


def countries() -> dict[str, str]:
    """Names of the countries whose intensity is known, by their codes of three letters."""
    rows = {row["iso3"]: row for row in _countries().values() if float(row["g_co2e_per_kwh"]) > 0}
    return {code: row["country"] for code, row in rows.items()}


def of_region(name: str, today: datetime.date | None = None) -> Intensity:
    """Find a country's intensity by its ISO 3166 code, DE or DEU, or its name; raises InputError.

    `today` says how old an entry is; None: the clock's.
    """
    known = _countries()
    names = {row["country"].lower(): row for row in known.values()}
    row = known.get(name.upper()) or names.get(name.lower())
    if row is None:
        raise unknown("region", name, [*known, *(one["country"] for one in names.values())])
    grams, year = float(row["g_co2e_per_kwh"]), int(row["year"])
    if not grams > 0:
        raise InputError(
            f"region {name}: its entry of {year} says 0 g per kWh, which is missing data; "
            "give --carbon-intensity in g per kWh"
        )
    age = (today or datetime.date.today()).year - year
    warning = (
        f"the carbon intensity of {row['country']} is of {year}, {age} years old"
        if age > OLDEST_YEARS
        else ""
    )
    return Intensity(grams, f"{row['country']} {year}, {row['source']}", warning)


def given(value: Any) -> Intensity:
    """A number of g CO2e per kWh, or the mean of electricityMaps' or WattTime's table; raises InputError."""
    if is_file(value):
        return _of_file(Path(value))
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(?:g(?:/kwh)?)?\s*", str(value).lower())
    if match is None or not float(match.group(1)):
        must = "write g CO2e per kWh, such as 350, or a file of electricityMaps or WattTime"
        raise InputError(f"carbon intensity {value!r:.40}: {must}")
    return Intensity(float(match.group(1)), "given")


def _of_file(path: Path) -> Intensity:
    try:
        rows = [*csv.DictReader(io.StringIO(read_text(path, mark=True)))]
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path}: {first_line(error)}; choose a table of electricityMaps or WattTime"
        ) from None
    named = [
        (column, factor)
        for begin, factor in COLUMNS.items()
        for column in (rows[0] if rows else ())
        if column and column.strip().lower().startswith(begin.lower())
    ]
    if not named:
        raise InputError(
            f"{path}: no column of electricityMaps or WattTime; it needs {next(iter(COLUMNS))!r} or 'MOER'"
        )
    column, factor = named[0]
    try:
        values = [float(row[column]) * factor for row in rows if row[column]]
    except ValueError as error:
        raise InputError(f"{path}, column {column!r}: {error}; correct the number") from None
    if not values or min(values) < 0 or not sum(values):
        raise InputError(f"{path}, column {column!r}: has no positive number; choose another file")
    return Intensity(
        sum(values) / len(values), f"mean of {len(values)} rows of {path.name}, {column.strip()}"
    )
