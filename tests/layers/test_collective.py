"""Exchanges between ranks: formulas, what stands in where nothing was measured, shipped predictors."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

import neuralpower.layers.collective  # noqa: F401  # defines the operators
from neuralpower.devices.spec import find_spec
from neuralpower.errors import DatasetError
from neuralpower.layers import KINDS, columns_of
from neuralpower.layers.collective import Collective, ring_steps, traffic
from neuralpower.layers.rows import from_row, to_row
from neuralpower.learn.files.predictor_lookup import load
from neuralpower.learn.notes import assumed

H100 = find_spec("h100-sxm5").hardware()


def exchange(
    function: str = "all_reduce", mebibytes: float = 1, ranks: int = 8, **more: object
) -> Collective:
    return Collective(
        dtype="bfloat16",
        function=function,
        elements=int(mebibytes * 2**19),
        ranks=ranks,
        **more,
    )


def seconds(device: str, *layers: Collective) -> np.ndarray:
    return load(device).estimate(layers).runtime_s


@pytest.mark.parametrize(
    ("function", "ranks", "factor", "hops"),
    [
        ("all_reduce", 4, 1.5, 6),
        ("all_gather", 4, 0.75, 3),
        ("reduce_scatter", 8, 0.875, 7),
        ("all_to_all", 2, 0.5, 1),
        ("broadcast", 8, 1, 7),
        ("send_recv", 2, 1, 1),
    ],
)
def test_a_ring_s_traffic_and_hops(function: str, ranks: int, factor: float, hops: int) -> None:
    assert traffic(function, ranks) == factor
    assert ring_steps(function, ranks) == hops


def test_formulas_serve_a_table_as_they_serve_a_layer() -> None:
    layers = [
        exchange(function, 16, ranks, nodes=nodes, library=library)
        for function, ranks, nodes, library in (
            ("all_reduce", 8, 1, "engine"),
            ("all_reduce", 16, 2, "nccl"),
            ("all_to_all", 16, 4, "nccl"),
            ("send_recv", 2, 2, "nccl"),
            ("broadcast", 2, 1, "gloo"),
        )
    ]
    table = columns_of(KINDS["collective"], layers)
    kernels = Collective.views.kernels
    formulas = (kernels.terms, kernels.own_terms, Collective.views.pooled.terms, kernels.features)
    for name in (Collective.law.bound_s, *formulas):
        whole, alone = name(table, H100), [name(layer, H100) for layer in layers]
        for term in whole if isinstance(whole, dict) else [None]:
            rows = whole if term is None else whole[term]
            each = alone if term is None else [one[term] for one in alone]
            assert np.broadcast_to(rows, 5) == pytest.approx(np.array(each, dtype=float)), (name, term)
    assert table.views.cpu.group(table).tolist() == [layer.views.cpu.group(layer) for layer in layers]


def test_two_nodes_take_the_network_s_time() -> None:
    two, bound_s = exchange(mebibytes=1024, ranks=16, nodes=2), Collective.law.bound_s
    one = bound_s(exchange(mebibytes=1024, ranks=16), H100)
    slow = dataclasses.replace(H100, network_bytes_per_s=1e9)
    assert bound_s(two, slow) > 5 * bound_s(two, H100)
    assert bound_s(two, H100) >= one
    # each of 8 devices of a node sends its eighth: 2^30 / 8 bytes each way, at 80 % of 1 GB/s
    assert bound_s(two, slow) == pytest.approx(2**30 / 8 / 1e9 / 0.8, rel=0.01)


def test_an_engine_s_exchange_takes_the_faster_of_its_own_and_nccl() -> None:
    small = [exchange(mebibytes=1 / 64, library=library) for library in ("engine", "nccl")]
    own, nccl = seconds("h100", *small)
    assert own < nccl / 2
    large = [exchange("all_gather", 64, library=library) for library in ("engine", "nccl")]
    own, nccl = seconds("h100", *large)
    assert own == nccl
    found = load("l40s").estimate(
        [exchange(mebibytes=2**k, ranks=2, library=one) for k in range(-6, 10) for one in ("engine", "nccl")]
    )
    assert (found.runtime_s[::2] <= found.runtime_s[1::2]).all()


@pytest.mark.parametrize(
    ("device", "ranks", "mebibytes", "measured_us"),
    [("h100", 8, 512, 2105), ("h100", 2, 1, 14.5), ("b200", 4, 512, 1300), ("l40s", 2, 128, 6720)],
)
def test_shipped_predictors_know_nccl(device: str, ranks: int, mebibytes: float, measured_us: float) -> None:
    layer = exchange(mebibytes=mebibytes, ranks=ranks)
    found = load(device).estimate([layer])
    assert found.runtime_s[0] == pytest.approx(measured_us * 1e-6, rel=0.25)
    assert found.basis[0] in ("measured", "in-range")


def test_what_nobody_measured_is_assumed_from_links_and_said() -> None:
    predictor = load("h100")
    layers = [exchange(ranks=16, nodes=2), exchange("broadcast"), exchange()]
    found = predictor.estimate(layers)
    assert found.basis[:2] == ("roofline", "roofline")
    assert found.high_s[:2] / found.low_s[:2] == pytest.approx([9, 9])
    said = [text for text in assumed(predictor, layers) if "collective" in text]
    assert said == [
        "collective all_reduce nccl network was not measured: time from links of 450 GB/s, and a network of "
        "50 GB/s, within a factor of 3",
        "collective broadcast nccl was not measured: time from links of 450 GB/s, within a factor of 3",
    ]


def test_a_device_without_links_is_taken_for_one_on_pci_express() -> None:
    layer = exchange()
    without = dataclasses.replace(H100, link_bytes_per_s=None)
    assert layer.law.bound_by(layer, without) == "PCI Express of 63 GB/s"
    unknown = dataclasses.replace(without, pcie_bytes_per_s=None)
    assert layer.law.bound_by(layer, unknown) == "PCI Express 4.0, 31.5 GB/s, as its sheet names no link"
    slowest, slow, fast = (layer.law.bound_s(layer, device) for device in (unknown, without, H100))
    assert slowest > slow > fast


def test_a_predictor_of_a_cpu_without_collectives_says_so() -> None:
    layer = dataclasses.replace(exchange(ranks=2, library="gloo"), dtype="float32")
    predictor = load("amd-epyc-2c")
    assert predictor.estimate([layer]).basis == ("roofline",)
    assert any(
        "collective all_reduce gloo" in text and "between processes" in text
        for text in assumed(predictor, [layer])
    )


@pytest.mark.parametrize(("ranks", "nodes"), [(1, 1), (4, 5), (2, 0)])
def test_ranks_and_nodes_that_contradict_each_other_are_refused(ranks: int, nodes: int) -> None:
    row = to_row(exchange()) | {"ranks": ranks, "nodes": nodes}
    with pytest.raises(DatasetError, match="2 ranks or more"):
        from_row(Collective, row)


def test_an_operator_s_call_is_read_by_the_whole_buffer() -> None:
    x = torch.empty(4, 6, dtype=torch.bfloat16, device="meta")
    gathered = torch.ops.neuralpower.all_gather(x, 8, 1, "nccl")
    layer = Collective.from_call("neuralpower.all_gather", gathered, x, 8, 1, "nccl")
    assert (layer.elements, layer.ranks, layer.dtype) == (8 * 24, 8, "bfloat16")
    scattered = torch.ops.neuralpower.reduce_scatter(x, 2, 1, "nccl")
    layer = Collective.from_call("neuralpower.reduce_scatter", scattered, x, 2, 1, "nccl")
    assert (tuple(scattered.shape), layer.elements) == ((2, 6), 24)
