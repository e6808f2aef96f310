"""Quantised weights in predictions, fits, sweeps and comparisons, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import neuralpower
from neuralpower.api.loaded import LoadedPredictor
from neuralpower.errors import InputError, ModelError
from neuralpower.learn.estimates import WEIGHTS_LAW
from neuralpower.learn.files.predictor_lookup import load, on
from neuralpower.networks.phases import Phase
from neuralpower.prediction.weights import as_run
from neuralpower.quantisation.asked import parsed
from neuralpower.report.tables import prediction_table
from tests.program import done, run

GPU = "nvidia-t4"
SIZES = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4, "vocab_size": 4096}
HEADS = {"num_attention_heads": 8, "num_key_value_heads": 2}
MODEL = "transformers:LlamaForCausalLM?" + "&".join(f"{name}={n}" for name, n in {**SIZES, **HEADS}.items())
IN_LAYERS = 4 * (2 * 512 * 512 + 2 * 128 * 512 + 3 * 512 * 1024)
SAVED = 4 * IN_LAYERS - IN_LAYERS // 2 - IN_LAYERS // 128 * 2  # bytes, from float32 to int4


@pytest.fixture(scope="module")
def loaded() -> LoadedPredictor:
    """A predictor of a GPU without rows of quantised products."""
    return neuralpower.load(GPU)


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    """A folder whose weights are AWQ's."""
    about = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **SIZES, **HEADS}
    config = {**about, "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return str(tmp_path)


def test_weights_change_memory_time_and_what_is_said(loaded: LoadedPredictor) -> None:
    phase = Phase.decode(context=64)
    plain, found = (
        loaded.predict(MODEL, phase=phase, weights=weights, dtype="float32") for weights in (None, "int4")
    )
    assert plain.memory is not None and found.memory is not None and found.weights is not None
    assert plain.memory.weights_bytes - found.memory.weights_bytes == SAVED
    assert found.memory.cache_bytes == plain.memory.cache_bytes
    assert found.weights.bytes == found.memory.weights_bytes
    assert plain.weights is None and plain.to_json()["weights"] is None
    assert found.passes[0] == "quantisation"
    short = [row for row in found.rows if row.layer and row.layer.operand_types.quantised]
    assert {row.basis for row in short} == {WEIGHTS_LAW}
    assert found.basis in (WEIGHTS_LAW, "roofline")
    assert found.coverage < plain.coverage
    said = prediction_table(found, "kind", 3, 15, full=True).splitlines()
    form = "weights int4, groups of 128, float32 model.embed_tokens, lm_head unchanged: "
    assert any(line.startswith(form) for line in said)
    assert any("with quantised weights was not measured here" in line for line in said)
    told: Any = found.to_json()["weights"]
    assert told["bits_per_quantised_weight"] == pytest.approx(4.125)
    assert told["left_out"] == ["model.embed_tokens", "lm_head"]
    json.dumps(told)


def test_a_generation_holds_quantised_weights(loaded: LoadedPredictor) -> None:
    phase = Phase.generate(prompt=16, new_tokens=4)
    plain, found = (
        loaded.predict(MODEL, phase=phase, weights=weights, dtype="float32") for weights in (None, "int4")
    )
    assert plain.memory is not None and found.memory is not None
    assert plain.memory.weights_bytes - found.memory.weights_bytes == SAVED
    assert found.weights is not None


def test_a_checkpoint_is_predicted_as_it_lies(loaded: LoadedPredictor, checkpoint: str) -> None:
    found = loaded.predict(checkpoint, seq_len=8)
    assert found.weights is not None and found.weights.name == "awq" and found.weights.checkpoint
    plain = loaded.predict(f"{checkpoint}?quantization_config=null", seq_len=8)
    assert plain.weights is None
    with pytest.raises(
        InputError, match=r"--weights int4: the checkpoint's weights are quantized already \(awq\)"
    ):
        loaded.predict(checkpoint, seq_len=8, weights="int4")
    with pytest.raises(InputError, match="training of quantised weights is not supported.*=null"):
        loaded.predict(checkpoint, seq_len=8, phase="training")
    with pytest.raises(InputError, match="training of quantised weights .* leave --weights out"):
        loaded.predict(MODEL, seq_len=8, phase="training", weights="nf4")
    with pytest.raises(ModelError, match=r"quantized \(awq\).* not run"):
        neuralpower.networks.sources.resolve(checkpoint).build("cpu")


def test_a_fit_counts_quantised_weights(loaded: LoadedPredictor, checkpoint: str) -> None:
    plain, found, own = (
        loaded.fit(model, "4GB", seq_len=16, weights=weights, dtype="float32")
        for model, weights in ((MODEL, None), (MODEL, "int4"), (checkpoint, None))
    )
    assert plain.memory.weights_bytes - found.memory.weights_bytes == SAVED
    assert found.weights is not None and own.weights is not None and plain.weights is None
    assert own.memory.weights_bytes - found.memory.weights_bytes == IN_LAYERS // 128 // 2  # zero points
    assert (found.largest_batch or 0) > (plain.largest_batch or 0)
    half = loaded.fit(checkpoint, "4GB", seq_len=16)  # AWQ's kernels multiply in float16
    tables = 2 * SIZES["vocab_size"] * 512 + 9 * 512  # of words, of the head, and norms
    assert own.memory.weights_bytes - half.memory.weights_bytes == tables * (4 - 2)
    with pytest.raises(InputError, match="training of quantised weights"):
        loaded.fit(MODEL, "1GB", phase="training", weights="int4")


def test_a_sweep_and_a_prediction_agree(loaded: LoadedPredictor) -> None:
    found = loaded.sweep(MODEL, batch_size=(1, 2, 4), seq_len=(16, 32), weights="int4:64")
    assert not any(point.error for point in found.points)
    point = next(p for p in found.points if (p.batch_size, p.seq_len) == (4, 32))
    alone = loaded.predict(MODEL, batch_size=4, seq_len=32, weights="int4:64")
    assert point.runtime_s == pytest.approx(alone.runtime_s.value, rel=1e-6)
    assert alone.memory is not None
    assert point.memory_bytes == pytest.approx(alone.memory.needed_bytes)  # without what is kept
    assert "weights int4, groups of 64" in found.notes
    mixed = loaded.sweep(MODEL, batch_size=(1, 2), seq_len=(16,), weights="q4_k_m")
    alone = loaded.predict(MODEL, batch_size=2, seq_len=16, weights="q4_k_m")
    assert mixed.points[1].runtime_s == pytest.approx(alone.runtime_s.value, rel=1e-6)
    assert alone.memory is not None
    assert mixed.points[1].memory_bytes == pytest.approx(alone.memory.needed_bytes)


def test_a_device_without_the_arithmetic_says_what_runs() -> None:
    a100 = on(load("nvidia-float32"), "nvidia-a100-sxm4-80gb")[0].hardware
    assert a100 is not None
    scheme = as_run(parsed("fp8"), a100)
    assert scheme is not None and scheme.form is not None
    assert (scheme.form.activations, scheme.widened) == ("", ("float8_e4m3fn",))
    assert as_run(parsed("w8a8"), a100) == parsed("w8a8")  # which it has
    out = done("predict", MODEL, "--seq-len", 8, "--predictor", GPU, "--weights", "fp8", "-v")
    assert "weights fp8 (the device has no fast fp8 arithmetic, so products run in float32), " in out
    line = next(line for line in out.splitlines() if line.startswith("weights "))
    assert line.startswith("weights fp8, a scale per output, float32 model.embed_tokens, lm_head unchanged: ")
    assert line.endswith("; the device has no fast fp8 arithmetic, so products run in float32")


def test_the_command_line_takes_weights_everywhere(checkpoint: str) -> None:
    told = json.loads(done("predict", checkpoint, "--seq-len", 8, "--predictor", GPU, "--json"))
    assert told["weights"]["name"] == "awq"
    assert told["weights"]["checkpoint"]
    fitted = done("fit", MODEL, "--memory", "4GB", "--device", GPU, "--seq-len", 8, "--weights", "nf4")
    assert fitted.splitlines()[1].startswith("weights nf4, groups of 64, ")
    swept = json.loads(
        done("sweep", MODEL, "--seq-len", 8, "--predictor", GPU, "--weights", "int8", "--json")
    )
    assert "weights int8, a scale per output" in swept["notes"]
    compared = done(
        "compare",
        MODEL,
        f"{MODEL}&num_hidden_layers=2",
        "--seq-len",
        8,
        "--predictor",
        GPU,
        "--weights",
        "int8",
    )
    assert "faster" in compared


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ("int5", "unknown weights 'int5'"),
        (
            "int4:96",
            "model.layers.0.self_attn.q_proj: groups of 96 weights (int4) do not divide its 512 inputs",
        ),
        ("nvfp4:32", "nvfp4 has groups of 16 by definition"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(weights: str, message: str) -> None:
    ran = run("predict", MODEL, "--seq-len", 8, "--predictor", GPU, "--weights", weights)
    assert ran.code == 2
    assert message in ran.err
    assert len(ran.err.splitlines()) == 1


def test_strict_refuses_the_law(loaded: LoadedPredictor) -> None:
    ran = run("predict", MODEL, "--seq-len", 8, "--predictor", GPU, "--weights", "int4", "--strict", 0.9)
    assert ran.code == 3
    assert "is below 90.0%" in ran.err
