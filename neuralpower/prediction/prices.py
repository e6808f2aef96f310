"""Prices of devices: an hour's, from a text or from a catalog's table. None is shipped, none is fetched."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neuralpower.devices.names import folded
from neuralpower.devices.spec import known_spec
from neuralpower.errors import InputError
from neuralpower.files.paths import is_file

DOLLARS = "USD"


@dataclass(frozen=True)
class Catalog:
    """The columns of a table of prices: of an hour of one or more devices."""

    device: str
    price: str
    count: str = ""
    currency: str = ""  # a column; "": dollars


# Own, SkyPilot's catalog, gpuhunt's.
CATALOGS = (
    Catalog("device", "price_per_hour", currency="currency"),
    Catalog("AcceleratorName", "Price", "AcceleratorCount"),
    Catalog("gpu_name", "price", "gpu_count"),
)


@dataclass(frozen=True)
class Price:
    """What a device costs for an hour."""

    per_hour: float
    currency: str = DOLLARS


def price_of(value: Any, currency: str | None, device: str) -> Price:
    """Read "2.49/h", or a device's price in a file; raises InputError. Currencies are never converted."""
    if is_file(value):
        found = _of_file(Path(value), device)
        if currency is not None and currency != found.currency:
            raise InputError(
                f"--currency {currency}: {value} has {found.currency}, and no rate is known; "
                "leave --currency out"
            )
        return found
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*/\s*h(?:our)?\s*", str(value).lower())
    if match is None or not float(match.group(1)):
        must = "write a positive price of a device for an hour, such as 2.49/h, or a file of prices"
        raise InputError(f"price {value!r:.40}: {must}")
    return Price(float(match.group(1)), currency or DOLLARS)


def _of_file(path: Path, device: str) -> Price:
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = [*csv.DictReader(file)]
    columns = rows[0] if rows else {}
    catalog = next((one for one in CATALOGS if one.device in columns and one.price in columns), None)
    if catalog is None:
        raise InputError(
            f"{path}: no column names a price with its unit; it needs device, price_per_hour and currency, "
            "or the columns of SkyPilot's or gpuhunt's catalog"
        )
    found = {_price(row, catalog, path) for row in rows if _is(row[catalog.device], device)}
    if not found:
        raise InputError(f"{path}: no price of {device}; add a row, or write --price 2.49/h")
    if len(found) > 1:
        said = ", ".join(
            f"{one.per_hour:g} {one.currency}/h" for one in sorted(found, key=lambda one: one.per_hour)
        )
        raise InputError(f"{path}: {device} has several prices: {said}; keep one")
    return found.pop()


def _is(name: str, device: str) -> bool:
    spec = known_spec(name)
    return folded(name) == folded(device) or (spec is not None and spec.slug == device)


def _price(row: Mapping[str, str], catalog: Catalog, path: Path) -> Price:
    count = row[catalog.count] if catalog.count else "1"
    try:
        hour = float(row[catalog.price]) / float(count)
    except (ValueError, ZeroDivisionError):
        raise InputError(
            f"{path}: {catalog.price} {row[catalog.price]!r} of {count!r} devices; write positive numbers"
        ) from None
    if not hour > 0:
        raise InputError(f"{path}: {catalog.price} {row[catalog.price]}: must be more than 0")
    currency = row.get(catalog.currency, "") if catalog.currency else DOLLARS
    if not currency:
        raise InputError(f"{path}: a price without a currency; fill the column currency")
    return Price(hour, currency)
