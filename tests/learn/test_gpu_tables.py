"""Reading measured tables of GPUs, and holding their rows out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks import gpu_held_out
from benchmarks.gpu_tables import SYSTEMS, Part, dataset, parts, products
from benchmarks.train import gpu_power, gpu_predictors
from neuralpower.devices.spec import known_hardware
from neuralpower.layers import KINDS
from neuralpower.layers.columns import as_columns
from neuralpower.layers.linear import Linear
from neuralpower.layers.rows import field_names
from neuralpower.learn.fitting.held_out import folds_of
from neuralpower.learn.fitting.problem import describe
from neuralpower.learn.keys import unquantised
from neuralpower.platforms import platform_of

SIDES = (256, 512, 1024, 2048, 4096, 8192, 16384, 65536)
ROWS = (1, 2, 3, 8, 64, 65, 1024, 16384)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as the benchmark takes it: products that follow a roofline, with 2 % of noise."""
    generator = np.random.default_rng(0)
    grid = np.array([(m, n, k) for n in SIDES for k in SIDES for m in ROWS], dtype=float)
    some = []
    for system, engine, version, dtype in (
        ("h100_sxm", "vllm", "0.24.0", "bfloat16"),
        ("h100_sxm", "sglang", "0.5.14", "fp8_block"),
        ("b300_sxm", "sglang", "0.5.14", "fp8_block"),
    ):
        m, n, k = grid.T
        seconds = 3e-6 + np.maximum(2 * m * n * k / 7e14, 2 * (m * n + n * k + m * k) / 3e12)
        seconds *= np.exp(0.02 * generator.normal(size=len(grid)))
        table = pd.DataFrame({"m": m, "n": n, "k": k, "latency_ms": 1e3 * seconds}).astype(
            {name: int for name in "mnk"}
        )
        some.append(table.assign(system=system, engine=engine, version=version, dtype=dtype))
    folder = tmp_path_factory.mktemp("peers")
    (folder / "aiconfigurator2").mkdir()
    pd.concat(some).to_parquet(folder / "aiconfigurator2" / "gemm.parquet")
    return folder


def found(tables: Path, system: str) -> dict[str, Part]:
    return {part.name: part for part in parts(tables, system, ["products"])}


def test_rows_are_read_in_the_columns_of_a_dataset(tables: Path) -> None:
    some = found(tables, "h100_sxm")
    assert list(some) == ["bfloat16", "fp8_block"]
    assert some["bfloat16"].engine == "vLLM 0.24.0"
    table = some["fp8_block"].table
    assert set(field_names(KINDS["linear"])) - {"input_dtype", "recurs"} <= set(table)
    assert table.weights_rows_group.unique().tolist() == [128]
    assert table.runtime_s.between(3e-6 / 2, 1).all()


def test_rows_of_another_device_are_left_out(tables: Path) -> None:
    assert found(tables, "b300_sxm") == {}


def test_rows_faster_than_memory_are_left_out() -> None:
    size = 65536 * 65536 * 2 / 3.35e12 * 1e3  # ms, of weights that no cache holds
    rows = pd.DataFrame({"dtype": "bfloat16", "n": 65536, "k": 65536, "latency_ms": [0.5 * size, 1.5 * size]})
    assert products.possible(rows, "h100_sxm").latency_ms.tolist() == [1.5 * size]


def test_every_shape_gives_as_many_drawn_rows_as_the_others(tables: Path) -> None:
    part = found(tables, "h100_sxm")["bfloat16"]
    few = Part(**{**vars(part), "draw": 3 * len(SIDES) ** 2 + 5})
    counts = np.bincount(few.shapes()[few.drawn()])
    assert few.drawn().sum() == few.draw
    assert set(counts) == {3, 4}
    assert (few.drawn() == few.drawn()).all()


def test_a_dataset_names_device_source_and_licence(tables: Path) -> None:
    rows = dataset(list(found(tables, "h100_sxm").values()), "h100_sxm")
    assert rows.device == SYSTEMS["h100_sxm"].slug
    assert "Apache-2.0" in rows.meta["source"]
    assert "SGLang 0.5.14: linear fp8_block" in rows.meta["source"]


def test_shapes_are_held_out_whole(tables: Path) -> None:
    part = found(tables, "h100_sxm")["bfloat16"]
    hardware = known_hardware(SYSTEMS["h100_sxm"].slug)
    assert hardware is not None
    for group in gpu_held_out.groups(part, hardware):
        shape = group.layer.in_features * 1e6 + group.layer.out_features  # type: ignore[attr-defined]
        assert len(np.unique(np.stack([shape, group.fold]), axis=1).T) == len(np.unique(shape))


def test_the_learner_holds_shapes_out_whole() -> None:
    grid = [
        Linear(rows=m, in_features=k, out_features=512, bias=False) for k in range(8, 808, 8) for m in (7, 8)
    ]
    names = field_names(Linear)
    columns = as_columns(Linear, {name: [getattr(layer, name) for layer in grid] for name in names})
    hardware = known_hardware("nvidia-l40s")
    assert hardware is not None
    fold = folds_of(describe(columns, hardware, target=np.ones(len(grid)))).reshape(-1, 2)
    assert (fold[:, 0] == fold[:, 1]).all()
    assert len(np.unique(fold)) == 10


def test_products_of_formats_are_trained_separately() -> None:
    hardware = known_hardware("nvidia-l40s")
    assert hardware is not None
    view = platform_of(hardware).alone
    sides = {"rows": 64, "in_features": 1024, "out_features": 1024, "bias": False}
    plain = Linear(dtype="bfloat16", **sides)
    four = Linear(dtype="bfloat16", **sides, weights_dtype="int4", weights_group=128)
    others = (
        Linear(dtype="bfloat16", **sides, weights_dtype="int8"),
        Linear(dtype="float8_e4m3fn", **sides, output_dtype="bfloat16"),
        Linear(dtype="float8_e4m3fn", **sides, output_dtype="bfloat16", quantises=True),
    )
    groups = [str(view.group(layer)) for layer in (plain, four, *others)]
    assert len(set(groups)) == len(groups)
    assert {unquantised(group) for group in groups} == {str(view.group(plain))}
    awq = Linear(dtype="bfloat16", **sides, weights_dtype="uint4", weights_group=64)
    assert str(view.group(awq)) == str(view.group(four))
    table = as_columns(
        Linear, {n: [getattr(layer, n) for layer in (plain, four)] for n in field_names(Linear)}
    )
    assert np.asarray(view.group(table)).tolist() == groups[:2]


def test_a_predictor_of_the_same_rows_is_left_as_it_is(
    tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    some = [Part(**{**vars(part), "draw": 60}) for part in found(tables, "h100_sxm").values()]
    monkeypatch.setattr(gpu_predictors, "parts", lambda *given: iter(some))
    monkeypatch.setattr(gpu_power, "parts", lambda *given: iter(()))
    asked = (tables, "h100_sxm", ["products"], tmp_path)
    gpu_predictors.write(*asked, jobs=1, again=False)
    file = tmp_path / f"{SYSTEMS['h100_sxm'].slug}.json"
    before = file.read_bytes()
    assert "Apache-2.0" in file.with_suffix(".md").read_text()
    gpu_predictors.write(*asked, jobs=1, again=False)
    assert "holds these rows already" in capsys.readouterr().out
    assert file.read_bytes() == before
