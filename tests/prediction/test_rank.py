"""Devices ranked for one network."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import neuralpower
from neuralpower.errors import InputError, ModelError
from neuralpower.prediction.explore import rank as ranking
from neuralpower.prediction.explore.rank import Ranking, chance_of_first
from neuralpower.prediction.rows import Interval
from neuralpower.report.results.ranked import rank_cells, rank_page, rank_table, skipped_lines
from tests.program import done

NET = "zoo:deep_mnist"
LLAMA = (
    "transformers:LlamaForCausalLM?hidden_size=256&num_hidden_layers=2&num_attention_heads=4&vocab_size=512"
)


@pytest.fixture(scope="module")
def by_price() -> Ranking:
    prices = {"h100": 2.0, "l4": 0.5}
    found = neuralpower.rank(NET, device=["h100", "l4", "t4"], by="price", price=prices, region="DE")
    assert isinstance(found, Ranking)
    return found


def test_the_cheapest_is_first_and_devices_without_a_price_are_told(by_price: Ranking) -> None:
    first, second = by_price.devices
    assert (first.rank, second.rank) == (1, 2)
    assert first.each.price is not None and second.each.price is not None
    assert first.each.price.value < second.each.price.value and first.each.currency == "USD"
    assert list(by_price.skipped) == ["t4"] and "none of nvidia-t4 is given" in by_price.skipped["t4"]
    assert first.first is not None and second.first is not None
    assert first.first + second.first == pytest.approx(1.0, abs=2e-3)


def test_every_form_says_the_same(by_price: Ranking) -> None:
    table, told = rank_table(by_price), json.loads(json.dumps(by_price.to_json()))
    assert f"best by price: {by_price.devices[0].device}" in table and "skipped t4: price: none" in table
    assert str(by_price) == table and repr(by_price).startswith("Ranking(")
    assert [one["device"] for one in told["devices"]] == [one.device for one in by_price.devices]
    header, *rows = rank_cells(by_price)
    assert [row[header.index("rank")] for row in rows] == [1, 2, None]
    assert rows[-1][-1] == by_price.skipped["t4"]
    assert "t4" in str(rank_page(by_price)) and by_price._repr_html_()
    assert any("none of the device is given" in line for line in skipped_lines(by_price))
    many = {f"d{i}": f"price: none of d{i} is given" for i in range(99)}
    lines = [*skipped_lines(replace(by_price, skipped=many))]
    assert lines == ["skipped 99 devices, such as d0, d1, d2: price: none of the device is given"]


def test_devices_that_run_alike_share_a_trace() -> None:
    found = neuralpower.rank(NET, device=["h100", "l40s", "b200"])
    assert found.traces == 1
    alone = neuralpower.predict(NET, device="l40s")
    mine = next(one for one in found.devices if one.device == "nvidia-l40s")
    assert mine.runtime_s == alone.runtime_s and mine.each.energy_j is not None
    assert alone.energy_j is not None
    assert mine.each.energy_j.value == pytest.approx(alone.energy_j.value / alone.batch_size)


def test_a_generation_is_priced_by_each_device_as_alone() -> None:
    phase = neuralpower.Phase.generate(prompt=16, new_tokens=8)
    found = neuralpower.rank(LLAMA, device=["h100", "l40s"], phase=phase, dtype="bfloat16", by="energy")
    assert found.unit == "token" and found.traces == 1
    for one in found.devices:
        alone = neuralpower.predict(LLAMA, device=one.device, phase=phase, dtype="bfloat16")
        assert one.runtime_s.value == pytest.approx(alone.runtime_s.value)


def test_a_device_that_is_too_small_is_last_and_has_no_rank() -> None:
    large = "transformers:LlamaForCausalLM?hidden_size=8192&num_hidden_layers=2&vocab_size=131072"
    how: dict[str, Any] = {"phase": "training", "seq_len": 128, "dtype": "float16"}
    found = neuralpower.rank(large, device=["t4", "h100"], **how)
    assert [(one.device, one.rank, one.fits) for one in found.devices] == [
        ("nvidia-h100-sxm5-80gb", 1, True),
        ("nvidia-t4", None, False),
    ]


def test_equal_errors_leave_the_order_sure_and_own_errors_do_not() -> None:
    pair = [Interval(100.0, 50.0, 200.0), Interval(90.0, 45.0, 180.0)]
    alike = chance_of_first(pair, [1.0, 1.0], "tokens/s")
    apart = chance_of_first(pair, [0.0, 0.0], "tokens/s")
    assert alike[0] == ranking.MOST_SURE and 0.5 < apart[0] < 0.7
    assert chance_of_first(pair, [1.0, 1.0], "energy")[1] == ranking.MOST_SURE


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"by": "price"}, "add --price 2.49/h"),
        ({"by": "carbon"}, "add --region DE"),
        ({"by": "size"}, "unknown ranking"),
        ({"device": ["nosuch"]}, "nosuch"),
        ({"batch_size": 0}, "batch size 0"),
        ({"device": "amd-epyc-9654", "by": "energy"}, "by energy: "),
    ],
)
def test_an_impossible_ranking_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        neuralpower.rank(NET, **{"device": ["h100"], **options})


def test_a_network_that_fails_is_run_once_and_said_before_a_device_that_fails() -> None:
    class Fails(nn.Module):
        runs = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            Fails.runs += 1
            raise ValueError(f"no {tuple(x.shape)}")

    def runs(*devices: str) -> int:
        Fails.runs = 0
        with pytest.raises(ModelError, match="ValueError"):
            neuralpower.rank(Fails(), device=[*devices], input_shape=(3, 8, 8))
        return Fails.runs

    assert runs("nosuch", "h100", "l4", "l40s") == runs("nosuch", "h100", "l4") > 0


def test_a_network_that_cannot_be_followed_is_refused_at_once() -> None:
    with pytest.raises(ModelError):
        neuralpower.rank("zoo:nosuch", device=["h100", "l4"])


def test_the_command_prints_writes_and_limits_devices(tmp_path: Path) -> None:
    prices = tmp_path / "prices.csv"
    prices.write_text("device,price_per_hour,currency\nnvidia-l4,0.7,EUR\nnvidia-t4,0.4,EUR\n")
    page = tmp_path / "rank.html"
    priced = ("--by", "price", "--price", prices, "--plot", page)
    assert "best by price" in done("rank", NET, "--device", "l4,t4", *priced)
    assert "EUR" in page.read_text(encoding="utf-8")
    rows = done("rank", NET, "--device", "l4,t4", "--by", "samples/s", "--format", "csv")
    assert rows.count("\n") == 3
