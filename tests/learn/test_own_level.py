"""Whole networks of one GPU move its law: what moved is found, and predictions are those of the fit."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from neuralpower.data.dataset import Dataset
from neuralpower.devices.spec import find_spec
from neuralpower.errors import DatasetError, PredictorError
from neuralpower.layers import KINDS, Hardware, Layer, columns_of
from neuralpower.layers.base import typed
from neuralpower.layers.rows import to_row
from neuralpower.learn.files.predictor_json import from_json, save, to_json
from neuralpower.learn.files.predictor_lookup import load
from neuralpower.learn.fitting.problem import describe
from neuralpower.learn.networks.network_rows import Total, Way, calls_of, read_totals, traced
from neuralpower.learn.networks.own_level import taught_by, teach
from neuralpower.learn.networks.totals_alone import train_totals
from neuralpower.learn.predictor import LAW, Predictor
from neuralpower.learn.train import train
from neuralpower.learn.unmeasured.any_device import before_networks, by_prior, for_device, with_the_rest
from neuralpower.measure.collect.plan import draw
from neuralpower.measure.collect.request import PRESETS
from neuralpower.platforms import PLATFORMS, hardware_to_json
from neuralpower.trace.recipe import Recipe

GPU = Hardware(
    platform="nvidia",
    cores=64,
    l2_bytes=2**23,
    llc_bytes=2**23,
    peak_flops_per_s={"float32": 2e13, "float16": 8e13},
    memory_bytes_per_s=8e11,
)
KINDS_OF_NETWORKS = ("linear", "norm", "activation", "pool2d")
PRODUCTS, PASSES = "linear compute", "norm memory"


def start(hardware: Hardware = GPU) -> Predictor:
    found = by_prior(hardware, "made-up gpu")
    assert found is not None
    return found


def pool() -> dict[str, list[Layer]]:
    """Large float16 calls, whose work and not whose launch takes the time."""
    large = replace(PRESETS["quick"], most_flops=1e12, most_bytes=2e9)
    drawn = {
        kind: [typed(layer, "float16") for layer in draw(KINDS[kind], 60, 7, large)]
        for kind in KINDS_OF_NETWORKS
    }
    return {
        kind: [la for la in layers if la.dtype == "float16" and sum(la.bytes()) > 1e6]
        for kind, layers in drawn.items()
    }


def networks(count: int, truth: Predictor, seed: int = 0, noise: float = 0.0) -> list[Total]:
    """Networks of a dozen layers with the times that the truth gives them."""
    generator, layers = np.random.default_rng(seed), pool()
    found = []
    for number in range(count):
        chosen = [
            layers[kind][i]
            for kind in KINDS_OF_NETWORKS
            for i in generator.choice(len(layers[kind]), 3, replace=False)
        ]
        counts = generator.integers(1, 9, len(chosen)).astype(float)
        took = float(counts @ truth.estimate(chosen).runtime_s) * math.exp(noise * generator.normal())
        found.append(Total(f"made-up:{number}", tuple(chosen), tuple(counts), took, None, number + 2))
    return found


def moved(**times: float) -> Predictor:
    """A device whose kinds take so many times what the prior says."""
    there = start()
    assert there.law is not None
    factors = {name.replace("_", " "): math.log(value) for name, value in times.items()}
    return replace(there, law=there.law.times(factors))


def table(totals: list[Total]) -> pd.DataFrame:
    rows = []
    for one in totals:
        layers = [[la.kind, to_row(la), n] for la, n in zip(one.layers, one.counts, strict=True)]
        rows.append(
            {"model": one.model, "batch": 1, "layers": json.dumps(layers), "runtime_s": one.runtime_s}
        )
    return pd.DataFrame(rows)


def data_of(totals: list[Total], **hardware: Any) -> Dataset:
    meta = {"schema": 1, "device": "made-up gpu", "hardware": {**hardware_to_json(GPU), **hardware}}
    return Dataset(Path("synthetic"), meta, {"network": table(totals)})


def relative(predictor: Predictor, totals: list[Total]) -> np.ndarray:
    found = predictor.of_torch().estimate_each([one.layers for one in totals])
    return np.array(
        [one.calls @ each.runtime_s / one.runtime_s for one, each in zip(totals, found, strict=True)]
    )


def test_totals_alone_of_a_gpu_move_the_prior_and_the_saved_file_says_what_the_fit_says(
    tmp_path: Path,
) -> None:
    truth = moved(linear_compute=2.0, norm_memory=2.0)
    given, others = networks(40, truth), networks(30, truth, seed=1)
    trained = train(data_of(given), jobs=1)
    save(trained.predictor, tmp_path / "mine.json")
    predictor = load(tmp_path / "mine.json")
    taught = teach(start(), given)
    assert np.allclose(relative(predictor, given), taught.fitted, rtol=0.01)
    before, after = (np.mean(np.abs(relative(one, others) - 1)) for one in (start(), predictor))
    assert before > 0.1 and after < 0.4 * before
    assert trained.correction is not None
    assert trained.correction.before == pytest.approx(taught.before)
    assert trained.correction.after < 0.6 * trained.correction.before
    found, prior = predictor.law, start().law
    assert found is not None and prior is not None
    assert found.factors[PRODUCTS] > prior.factors[PRODUCTS] + 0.1


def test_terms_of_totals_are_held_to_no_floor_that_the_fit_does_not_know(tmp_path: Path) -> None:
    # no peaks: the prior cannot say what FLOP take; a last-level cache keeps what one layer leaves the next
    truth = moved()
    given = [
        replace(one, runtime_s=0.4 * one.runtime_s, layers=one.layers[3:], counts=one.counts[3:])
        for one in networks(40, truth)
    ]
    trained = train(data_of(given, peak_flops_per_s={}), jobs=1)
    assert trained.predictor.regressors
    save(trained.predictor, tmp_path / "sums.json")
    hardware = replace(GPU, peak_flops_per_s={})
    used = train_totals(read_totals(table(given))[0], hardware, ())[1]
    fit = [
        sum(
            count * regressor.predict(describe(columns_of(KINDS[key[0]], [layer]), hardware))[0].item()
            for layer, count in zip(one.layers, one.counts, strict=True)
            for key, regressor in trained.predictor.regressors.items()
            if key[:2] == (layer.kind, layer.dtype)
        )
        / one.runtime_s
        for one in used
    ]
    assert np.allclose(relative(load(tmp_path / "sums.json"), list(used)), fit, rtol=0.01)
    assert np.median(fit) == pytest.approx(1.0, abs=0.05)


def errors_of(truth: Predictor, count: int, seed: int) -> list[float]:
    """Mean errors of other networks before and after a few moved the law."""
    given, others = networks(count, truth, seed, noise=0.06), networks(40, truth, seed + 50, noise=0.06)
    after = taught_by(start(), teach(start(), given))
    return [float(np.mean(np.abs(relative(one, others) - 1))) for one in (start(), after)]


def test_few_networks_make_nothing_worse_and_ten_help() -> None:
    wrong = moved(linear_compute=2.0, norm_memory=2.0)
    for truth, count in ((moved(), 5), (moved(), 10), (wrong, 5)):
        for seed in range(2):
            before, after = errors_of(truth, count, seed)
            assert after <= 1.02 * before
    before, after = np.mean([errors_of(wrong, 10, seed) for seed in range(2)], axis=0)
    assert after < 0.75 * before


def test_ten_networks_count_by_the_noise_that_networks_have() -> None:
    ten = teach(start(), networks(10, moved(linear_compute=1.2, norm_memory=1.2), seed=3, noise=0.12))
    assert ten.after < 0.8 * ten.before  # 0.85 where they may count as noisier


def test_networks_that_gain_nothing_leave_the_factors_as_they_are() -> None:
    given = networks(12, moved())
    taught = teach(start(), given)
    assert (taught.gained, taught.moved, taught.law) == (False, (), start().law)
    assert taught.before == taught.after == pytest.approx(0.0, abs=1e-6)


def test_the_factor_that_moved_is_named_with_the_networks_that_moved_it() -> None:
    truth, calm = moved(linear_compute=2.0), moved()
    slow = networks(8, truth)
    plain = [
        replace(one, model=f"calm:{i}", layers=one.layers[3:], counts=one.counts[3:])
        for i, one in enumerate(networks(8, calm, seed=3))
    ]
    plain = [replace(one, runtime_s=float(one.calls @ calm.estimate(one.layers).runtime_s)) for one in plain]
    taught = teach(start(), [*slow, *plain])
    assert {one.factor.partition(":")[0] for one in taught.moved[:2]} <= {PRODUCTS, "compute"}
    named = {name for one in taught.moved[:2] for name in one.networks}
    assert named and all(name.startswith("made-up:") for name in named)
    assert all(one.times > 1 for one in taught.moved[:2])


@pytest.mark.parametrize(
    ("times", "said"), [(1e3, "most likely milliseconds"), (1e6, "microseconds"), (1e-3, "check their unit")]
)
def test_times_in_another_unit_are_refused(times: float, said: str) -> None:
    given = [replace(one, runtime_s=one.runtime_s * times) for one in networks(6, moved())]
    with pytest.raises(DatasetError, match=said):
        teach(start(), given)


def test_four_networks_are_too_few() -> None:
    with pytest.raises(DatasetError, match="4 usable networks; 5 needed"):
        teach(start(), networks(4, moved()))
    few = data_of(networks(4, moved()))
    with pytest.raises(DatasetError, match="synthetic: 4 usable networks; 5 needed"):
        train(few, jobs=1)


def test_a_law_is_read_as_it_was_written_and_stands_in_no_other_file() -> None:
    taught = teach(start(), networks(30, moved(linear_compute=1.5)))
    found = taught_by(start(), taught)
    read = from_json(to_json(found), "mine")
    assert (read.law, read.learner, read.answers) == (found.law, LAW, start().answers)
    assert read.dataset["moved"][0]["factor"] == taught.moved[0].factor
    assert "law" not in to_json(replace(found, learner="lasso"))
    with pytest.raises(PredictorError, match="law is"):
        from_json({**to_json(found), "learner": "lasso"}, "mine")
    with pytest.raises(PredictorError, match="law"):
        from_json({name: value for name, value in to_json(found).items() if name != "law"}, "mine")


def test_a_moved_law_of_a_known_gpu_has_the_other_predictors_of_that_gpu_beside_it() -> None:
    found = replace(taught_by(start(), teach(start(), networks(30, moved(linear_compute=1.5)))))
    there = with_the_rest(replace(found, device="nvidia-rtx-4090"))
    assert there.law == found.law
    assert there.regressors or there.others
    assert with_the_rest(found) is found  # a device without a sheet has no others


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("run", ["eager", "compile"])
def test_networks_are_followed_as_their_row_says_that_they_ran(layout: str, run: str) -> None:
    row = {"model": "zoo:resnet18", "batch": 4, "dtype": "amp", "layout": layout, "run": run, "runtime_s": 1}
    (found,), rejected = read_totals(pd.DataFrame([row]), GPU)
    assert not rejected
    convolutions = [layer for layer in found.layers if layer.kind == "conv2d"]
    # autocast multiplies in 16 bits; a compiled network turns its convolutions to channels last by itself
    assert {layer.dtype for layer in convolutions} == {"float16"}
    last = {getattr(layer, "channels_last") for layer in convolutions[1:]}  # noqa: B009
    assert last == ({True} if layout == "nhwc" or run == "compile" else {False})
    assert any(layer.kind == "fused" for layer in found.layers) == (run == "compile")
    casts = [layer for layer in found.layers if to_row(layer).get("function") == "cast"]
    assert bool(casts) == (run == "eager")  # Inductor's kernels take them in


def test_a_step_of_training_is_followed_as_it_ran() -> None:
    way = Way("amp", "nhwc", recipe=Recipe("momentum", "loop"))
    calls = calls_of(traced("zoo:resnet18", 4, None, None, PLATFORMS["nvidia"], way))
    convolutions = [layer for layer in calls if layer.kind == "conv2d"]
    assert {(layer.dtype, layer.phase) for layer in convolutions} == {
        ("float16", "forward"),
        ("float16", "gradient"),
    }
    assert any(layer.kind == "optimizer" for layer in calls)


def test_a_file_of_a_moved_law_counts_for_its_device_and_for_no_other_board(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = find_spec("rtx-4090")
    there = before_networks(spec)
    moved_there = replace(there, law=there.law and there.law.times({"compute": 0.3}))
    found = taught_by(there, teach(there, networks(30, moved_there)))
    monkeypatch.chdir(tmp_path)
    save(found, tmp_path / "models" / f"{spec.slug}-calibrated.json")
    now, board = for_device(spec), for_device(find_spec("rtx-4090-d"))
    assert now.law is not None and found.law is not None and board.law is not None
    assert now.law.factors == pytest.approx(found.law.factors, rel=1e-5)
    assert before_networks(spec).law == there.law
    assert board.law.factors.get("compute", 0) < found.law.factors["compute"]
    assert all(one.learner != LAW for one in (now, *now.others, board, *board.others))
