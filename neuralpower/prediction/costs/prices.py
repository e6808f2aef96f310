"""Prices of devices: an hour's, from a text or from a catalog's table. None is shipped, none is fetched."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neuralpower.devices.names import folded
from neuralpower.devices.spec import specs_of
from neuralpower.errors import InputError, first_line
from neuralpower.files.json_files import read_text
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


class NoPrice(InputError):  # noqa: N818  # of this device, where others have one
    """A table of prices without the device."""


@dataclass(frozen=True)
class Price:
    """What a device costs for an hour."""

    per_hour: float
    currency: str = DOLLARS


def price_of(value: Any, currency: str | None, device: str) -> Price:
    """Read "2.49/h", a device's price in "h100=2.49,l40s=0.79", a mapping or a file; raises InputError.

    A number is of an hour. Currencies are never converted.
    """
    if isinstance(value, (str, Path)) and is_file(value):
        found = _of_file(Path(value), device)
        if currency is not None and currency != found.currency:
            raise InputError(
                f"--currency {currency}: {value} has {found.currency}, and no rate is known; "
                "leave --currency out"
            )
        return found
    named = value if isinstance(value, Mapping) else by_name(value) if "=" in str(value) else None
    if named is not None:
        prices = _nearest(((name, price) for name, price in named.items()), device)
        if not prices:
            raise NoPrice(f"price: none of {device} is given; add one, as NAME=2.49")
        value = prices[0]
    match = re.fullmatch(r"\s*\$?([0-9]+(?:\.[0-9]+)?)\s*(?:/\s*h(?:our)?)?\s*", str(value).lower())
    if match is None or not 0 < float(match.group(1)) < math.inf:
        must = "write a positive price of a device for an hour, such as 2.49/h, or a file of prices"
        raise InputError(f"price {value!r:.40}: {must}")
    return Price(float(match.group(1)), currency or DOLLARS)


def by_name(text: Any) -> dict[str, str]:
    """The prices of "h100-sxm=2.49,l40s=0.79" by device; raises InputError."""
    found: dict[str, str] = {}
    for part in filter(None, (one.strip() for one in str(text).split(","))):
        name, equals, price = part.partition("=")
        if not equals or not name.strip():
            raise InputError(f"price {part!r:.40}: write a device with its price: h100-sxm=2.49")
        if name.strip() in found:
            raise InputError(f"price: {name.strip()} has two prices; leave one out")
        found[name.strip()] = price
    return found


def _nearest(named: Iterable[tuple[str, Any]], device: str) -> list[Any]:
    """What names of a device stand for; names that other devices have too count where none is its alone."""
    alone, shared = list[Any](), list[Any]()
    for name, value in named:
        meant = specs_of(name)
        if folded(name) == folded(device) or meant == (device,):
            alone.append(value)
        elif device in meant:
            shared.append(value)
    return alone or shared


def _of_file(path: Path, device: str) -> Price:
    try:
        text = read_text(path, mark=True)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: {first_line(error)}; write a CSV file of prices") from None
    if "=" in (lines := text.split("\n"))[0]:
        return price_of(",".join(lines), None, device)
    rows = [*csv.DictReader(io.StringIO(text))]
    columns = rows[0] if rows else {}
    catalog = next((one for one in CATALOGS if one.device in columns and one.price in columns), None)
    if catalog is None:
        raise InputError(
            f"{path}: no column names a price with its unit; it needs device, price_per_hour and currency, "
            "or the columns of SkyPilot's or gpuhunt's catalog"
        )
    mine = _nearest(((row[catalog.device] or "", row) for row in rows), device)
    found = {_price(row, catalog, path) for row in mine}
    if not found:
        raise NoPrice(f"{path}: no price of {device}; add a row, or write --price 2.49/h")
    if len(found) > 1:
        said = ", ".join(
            f"{one.per_hour:g} {one.currency}/h" for one in sorted(found, key=lambda one: one.per_hour)
        )
        raise InputError(f"{path}: {device} has several prices: {said}; keep one")
    return found.pop()


def _price(row: Mapping[str, str], catalog: Catalog, path: Path) -> Price:
    count = row[catalog.count] if catalog.count else "1"
    try:
        hour = float(row[catalog.price]) / float(count)
    except (TypeError, ValueError, ZeroDivisionError):
        raise InputError(
            f"{path}: {catalog.price} {row[catalog.price]!r} of {count!r} devices; write positive numbers"
        ) from None
    if not 0 < hour < math.inf:
        raise InputError(f"{path}: {catalog.price} {row[catalog.price]}: must be more than 0")
    currency = row.get(catalog.currency, "") if catalog.currency else DOLLARS
    if not currency:
        raise InputError(f"{path}: a price without a currency; fill the column currency")
    return Price(hour, currency)
