"""Carbon intensities and prices as people give them."""

from __future__ import annotations

import csv
import datetime
from pathlib import Path

import pytest

from neuralpower.errors import InputError
from neuralpower.prediction.costs.carbon import TABLE, given, of_region
from neuralpower.prediction.costs.prices import Price, price_of

TODAY = datetime.date(2026, 11, 28)
H100 = "nvidia-h100-sxm5-80gb"


@pytest.mark.parametrize("name", ["DE", "deu", "Germany", "germany"])
def test_a_country_has_its_intensity_with_year_and_source(name: str) -> None:
    found = of_region(name, TODAY)
    assert found.grams_per_kwh == pytest.approx(380.95, abs=0.1)
    assert "Germany 2023" in found.source and "Ember" in found.source and not found.warning


def test_every_country_is_known_by_both_codes() -> None:
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = [*csv.DictReader(file)]
    assert len(rows) == 213
    assert all(len(row["iso3"]) == 3 and len(row["iso2"]) == 2 and row["source"] for row in rows)
    assert "CC BY 4.0" in TABLE.with_name("LICENSE").read_text()


def test_an_old_entry_warns() -> None:
    assert "is of 2009, 17 years old" in of_region("ESH", TODAY).warning
    assert not of_region("MTQ", TODAY).warning  # of 2021


@pytest.mark.parametrize(("name", "text"), [("CAF", "says 0 g per kWh"), ("Germny", "did you mean Germany")])
def test_a_region_without_a_number_is_refused(name: str, text: str) -> None:
    with pytest.raises(InputError, match=text):
        of_region(name, TODAY)


@pytest.mark.parametrize("value", ["0.35kg", "0", "-3", "350 lb"])
def test_an_intensity_in_other_units_is_refused(value: str) -> None:
    with pytest.raises(InputError, match="write g CO2e per kWh"):
        given(value)


def test_tables_of_others_are_read(tmp_path: Path) -> None:
    maps, watttime = tmp_path / "maps.csv", tmp_path / "watttime.csv"
    maps.write_text(
        "Datetime (UTC),Carbon intensity gCO₂eq/kWh (Life cycle)\n1,300\n2,500\n", encoding="utf-8"
    )
    watttime.write_text("timestamp,MOER\n1,1000\n", encoding="utf-8")
    assert given("350").grams_per_kwh == 350
    assert given(str(maps)).grams_per_kwh == 400
    assert given(str(watttime)).grams_per_kwh == pytest.approx(453.6, abs=0.1)
    maps.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="is not UTF-8"):
        given(str(maps))
    maps.write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="no column of electricityMaps or WattTime"):
        given(str(maps))


def test_a_price_of_an_hour_is_read() -> None:
    assert price_of("2.49/h", None, H100) == Price(2.49, "USD")
    assert price_of("2.49 / hour", "EUR", H100) == Price(2.49, "EUR")


@pytest.mark.parametrize("value", ["0/h", "-1/h", "0", "0.5/token", "free", "h100=0"])
def test_an_impossible_price_is_refused(value: str) -> None:
    with pytest.raises(InputError, match="write a positive price of a device for an hour"):
        price_of(value, None, H100)


def prices(folder: Path, text: str) -> str:
    path = folder / "prices.csv"
    path.write_text(text)
    return str(path)


def test_prices_of_catalogs_are_read(tmp_path: Path) -> None:
    own = "device,price_per_hour,currency\nl4,9,EUR\nnvidia-h100-sxm5-80gb,2.5,EUR\n"
    assert price_of(prices(tmp_path, own), None, H100) == Price(2.5, "EUR")
    with pytest.raises(InputError, match="no rate is known"):
        price_of(prices(tmp_path, own), "USD", H100)
    sky = "InstanceType,AcceleratorName,AcceleratorCount,Price\nx,NVIDIA H100-SXM5-80GB,8,24\n"
    assert price_of(prices(tmp_path, sky), None, H100) == Price(3.0, "USD")


def test_a_name_of_several_boards_counts_where_none_is_the_devices_alone(tmp_path: Path) -> None:
    sky = "AcceleratorName,AcceleratorCount,Price\nA100,1,1\nA100-80GB,1,2\nH100,8,24\n"
    path = prices(tmp_path, sky)
    assert price_of(path, None, "nvidia-a100-sxm4-80gb") == Price(2.0)
    assert price_of(path, None, "nvidia-a100-pcie-40gb") == Price(1.0)
    assert price_of(path, None, H100) == Price(3.0)


def test_prices_by_name_are_those_of_the_device() -> None:
    assert price_of("h100=2.49,l40s=0.79/h", None, "nvidia-l40s") == Price(0.79)
    assert price_of({"h100": 2.5}, "EUR", H100) == Price(2.5, "EUR")
    with pytest.raises(InputError, match="two prices"):
        price_of("h100=2,h100=3", None, H100)
    with pytest.raises(InputError, match="none of nvidia-l4 is given"):
        price_of("h100=2", None, "nvidia-l4")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("device,price\nnvidia-h100-sxm5-80gb,2\n", "no column names a price with its unit"),
        (
            "device,price_per_hour,currency\nnvidia-h100-sxm5-80gb,2,EUR\nnvidia-h100-sxm5-80gb,3,EUR\n",
            "has several prices: 2 EUR/h, 3 EUR/h",
        ),
        ("device,price_per_hour,currency\nnvidia-h100-sxm5-80gb,0,EUR\n", "must be more than 0"),
        ("device,price_per_hour,currency\nnvidia-h100-sxm5-80gb,2,\n", "a price without a currency"),
        ("device,price_per_hour,currency\nnvidia-l4,2,EUR\n", "no price of nvidia-h100"),
    ],
)
def test_a_file_that_does_not_say_a_price_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        price_of(prices(tmp_path, text), None, H100)
