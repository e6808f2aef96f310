"""Whether a prompt or a decoder's step fits, its cache of keys and values being part of the memory."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

import neuralpower
from neuralpower.errors import InputError
from neuralpower.learn.files import predictor_lookup
from neuralpower.networks.phases import Phase
from neuralpower.platforms import CPU, PLATFORMS, Platform
from neuralpower.prediction.case import predict_request
from neuralpower.prediction.fits.fit import fit, memory
from neuralpower.prediction.request import Request
from tests.asking import requested
from tests.program import done, run

LLAMA = (
    "transformers:llama?hidden_size=32&intermediate_size=64&num_attention_heads=4&"
    "num_key_value_heads=2&vocab_size=100"
    "&num_hidden_layers=3&max_position_embeddings=300"
)
SHALLOW = LLAMA.replace("num_hidden_layers=3", "num_hidden_layers=2")
ROOM = 2 * CPU.framework.forward_bytes + 10e6 + CPU.framework.process_bytes
# a token of one sample: keys and values of 2 heads of 8 numbers of 4 bytes in 3 layers
TOKEN = 2 * 2 * 8 * 4 * 3


def test_a_steps_memory_holds_the_cache_with_the_new_token_and_what_the_last_layer_has_yet_to_drop() -> None:
    found = fit(requested(LLAMA, 2, phase="decode", context=16), ROOM)
    # 17 tokens of 2 samples, and while the last layer's values are joined with the new one its 16 old ones:
    # 1 / 6 of 16
    assert found.memory.cache_bytes == 2 * 17 * TOKEN + 2 * 16 * TOKEN // 6
    assert found.memory.phase == "decode"
    prefilled = fit(requested(LLAMA, 2, 16, phase="prefill"), ROOM)
    assert prefilled.memory.cache_bytes == 2 * 16 * TOKEN
    assert fit(requested(LLAMA, 2, 16), ROOM).memory.cache_bytes <= 2 * 16 * TOKEN


@pytest.mark.parametrize(
    ("request_", "phase"),
    [
        (requested(LLAMA, 20, phase="decode", context=16), Phase.decode(context=16)),
        (requested(LLAMA, 20, 24, phase="prefill"), Phase.prefill(24)),
        (requested(LLAMA, 2, 24, phase="generate", new_tokens=200), Phase.generate(24, 200)),
        (requested(LLAMA, 20, 200, phase="generate", new_tokens=3), Phase.generate(200, 3)),
    ],
    ids=["decode", "prefill", "generate, the last step", "generate, the prompt"],
)
def test_a_batch_drawn_out_has_the_memory_that_is_predicted_of_it(request_: Request, phase: Phase) -> None:
    alone, _ = predict_request(
        requested(LLAMA, request_.batch_size, phase=phase), predictor_lookup.load("amd-epyc-2c")
    )
    assert alone.memory is not None
    assert fit(request_, ROOM).memory.high_bytes == alone.memory.high_bytes


@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_the_largest_batch_fits_and_a_larger_one_does_not(phase: str) -> None:
    def of(batch: int) -> Request:
        sizes = {"context": 100} if phase == "decode" else {"seq_len": 100}
        return requested(LLAMA, batch, phase=phase, **sizes)

    room = 40e6 + CPU.framework.process_bytes
    batch = fit(of(1), room).largest_batch
    assert batch is not None
    assert batch > 8
    assert fit(of(batch), room).fits
    assert not fit(of(int(1.02 * batch) + 1), room).fits


def test_a_context_ends_with_the_memory_or_with_the_models_positions() -> None:
    steps = fit(requested(LLAMA, phase="decode"), ROOM)
    # 300 positions: 299 in the cache and the new token
    assert (steps.longest, steps.longest_reason) == (299, "the model's positions")
    assert fit(requested(LLAMA, phase="prefill"), ROOM).longest == 300
    many = fit(requested(LLAMA, 100, phase="decode", context=10), ROOM)
    assert many.longest_reason == "memory"
    assert 10 < (many.longest or 0) < 299


def test_micro_batches_keep_gradients_and_checkpoints_inputs_alone() -> None:
    room = 2 * CPU.framework.training_bytes + 6e6 + CPU.framework.process_bytes
    plain, more, again = (
        requested(SHALLOW, 8, 64, phase="training", accumulation=count, checkpointing=on, remedies=False)
        for count, on in ((1, False), (2, False), (1, True))
    )
    kept = memory(plain)
    assert memory(more).value_bytes >= kept.value_bytes
    assert memory(again).activations_bytes < kept.activations_bytes
    batch = fit(plain, room).largest_batch
    assert batch is not None and batch > 0
    assert memory(replace(again, batch_size=batch + 1)).high_bytes < room


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"phase": "decode", "context": 300}, "context 300 and the new token take 301 positions"),
        ({"phase": "prefill", "seq_len": 301}, "prompt 301 takes 301 positions"),
        ({"phase": "decode", "context": 0}, "context is 0, but must be a whole number from 1"),
        ({"checkpointing": True}, "belong to phase training, not to forward"),
        ({"phase": "training", "accumulation": 0}, "accumulation 0: must be 1 micro-batch or more"),
        ({"phase": "prefill", "context": 3}, "context 3 belongs to phase decode, not to prefill"),
        ({"phase": "prefill", "new_tokens": 3}, "new_tokens 3 belongs to phase generate"),
        ({"phase": "generate", "new_tokens": 0}, "new_tokens is 0"),
        ({"phase": "decode", "model": "zoo:deep_mnist"}, "has none"),
    ],
)
def test_what_no_step_can_have_is_refused(options: dict[str, Any], message: str) -> None:
    how: dict[str, Any] = {"model": LLAMA, "memory": ROOM, "device": "cpu", **options}
    with pytest.raises(InputError, match=message):
        neuralpower.fit(**how)


def test_requests_of_several_lengths_fit_as_they_are_predicted() -> None:
    same: Any = {"memory": "2.2GB", "device": "t4", "phase": "decode", "remedies": False, "dtype": "float32"}
    equal = neuralpower.fit(LLAMA, **same, context=8, batch_size=2)
    assert neuralpower.fit(LLAMA, **same, lengths="8,8").memory == equal.memory
    uneven = neuralpower.fit(LLAMA, **same, lengths=(8, 200))
    phase = neuralpower.Phase.decode(lengths=(8, 200))
    predicted = neuralpower.predict(LLAMA, device="t4", phase=phase, dtype="float32")
    assert predicted.memory is not None
    assert uneven.memory.cache_bytes == predicted.memory.cache_bytes > equal.memory.cache_bytes
    assert uneven.largest_batch is not None and uneven.largest_batch > 2
    with pytest.raises(InputError, match="fit follows one step; choose prefill or decode"):
        neuralpower.fit(LLAMA, device="t4", phase="generate", lengths=(8, 9))


def test_the_command_ends_with_0_1_or_2() -> None:
    step = ("fit", LLAMA, "--device", "cpu", "--phase", "decode", "--context", 200)
    text = done(*step, "--memory", "1GB")
    assert (
        "context 200, float32, decode, eager, on a CPU of 1GB\nfits into 954 MiB (probability above 99%)\n"
        in text
    )
    ran = run(*step, "--memory", "1MB", "--json")
    answer = json.loads(ran.out)
    assert (answer["fits"], answer["largest_batch_size"], answer["longest_seq_len"]) == (False, 0, 0)
    assert ran.code == 1
    here = ("fit", LLAMA, "--device", "cpu", "--memory", "1GB")
    generation = (*here, "--phase", "generate", "--prompt", 20, "--new-tokens", 30)
    text = done(*generation)
    assert (
        "length 20, float32, generate, eager, on a CPU of 1GB\nfits into 954 MiB (probability above 99%)\n"
        in text
    )
    assert "both are the prompt's length" in run(*generation, "--seq-len", 21).err
    ran = run(*step[:-1], 300, "--memory", "1GB")
    assert ran.code == 2
    assert "made for 300" in ran.err


@pytest.mark.parametrize(
    ("phase", "platform", "run_"),
    [
        ("decode", PLATFORMS["accelerator"], "engine"),
        ("decode", CPU, "eager"),
        ("forward", PLATFORMS["accelerator"], "eager"),
    ],
)
def test_a_fit_without_a_way_to_run_uses_the_usual_one(phase: str, platform: Platform, run_: str) -> None:
    request = requested(SHALLOW, phase=phase, platform=platform, remedies=False)
    found = fit(request, ROOM + 2**30)
    assert found.request is not None and found.request.run == run_
    assert found.memory == fit(replace(request, run=run_), ROOM + 2**30).memory


def test_a_note_on_training_steps_belongs_to_training_alone() -> None:
    accelerator = PLATFORMS["accelerator"]
    assert "A100" in accelerator.memory_note("training")
    assert accelerator.memory_note("decode") == accelerator.memory_note("forward") != ""
    assert "A100" not in accelerator.memory_note("decode") and CPU.memory_note("training") == ""
