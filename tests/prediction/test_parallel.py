"""Networks on several devices: time, exchanges, memory and energy of all ranks."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

import neuralpower
from neuralpower.devices.cluster import Cluster, Layout
from neuralpower.devices.spec import find_spec
from neuralpower.errors import InputError
from neuralpower.layers.base import FORWARD
from neuralpower.learn.predictor import Predictor
from neuralpower.learn.unmeasured.any_device import for_device
from neuralpower.networks.phases import DECODE, Phase
from neuralpower.prediction.case import predict_request
from neuralpower.prediction.compose import question_of
from neuralpower.prediction.parallel import lanes, one_micro_batch, predict_layout
from neuralpower.prediction.prediction import BUBBLE, Prediction
from neuralpower.prediction.request import Request
from neuralpower.prediction.several_devices import Parallel
from neuralpower.prediction.timeline import Stage
from neuralpower.report.perfetto import predicted as drawn
from neuralpower.trace.follow import follow
from neuralpower.trace.followed import Followed
from neuralpower.trace.question import Question
from neuralpower.trace.recipe import TRAINING, Recipe

LAYERS = 4
LLAMA = (
    "transformers:llama?hidden_size=256&intermediate_size=1024&num_attention_heads=8&num_key_value_heads=4&"
    f"vocab_size=1000&num_hidden_layers={LAYERS}&max_position_embeddings=512"
)
SPEC = find_spec("h100-sxm")


@cache
def gpu() -> Predictor:
    return for_device(SPEC)


@cache
def followed(tensor: int, phase: str, **how: Any) -> Followed:
    """One rank's module, followed once for all layouts."""
    question = asked(Layout(tensor=tensor), phase, 1, **how)
    passes = Phase(phase, context=64) if phase == DECODE else Phase()
    passes = Phase(TRAINING) if question.phase == TRAINING else passes
    request = Request(LLAMA, 2, None if phase == DECODE else 64, None, "bfloat16", passes)
    request = replace(request, layout=question.layout)
    found = follow(request.asked(request.source(), question.run), one_micro_batch(question))
    assert isinstance(found, Followed)
    return found


def asked(layout: Layout, phase: str, count: int, **how: Any) -> Question:
    """What is asked of a layout: graphs, so that no launch hides what a device does."""
    recipe = Recipe("adamw", accumulation=count, **how)
    way = TRAINING if phase == TRAINING else FORWARD
    return question_of(gpu(), phase=way, dtype="bfloat16", recipe=recipe, layout=layout, run="graph")


@cache
def predicted(layout: Layout, phase: str = TRAINING, count: int = 1, **how: Any) -> Prediction:
    question = asked(layout, phase, count, **how)
    return predict_layout(followed(layout.tensor, phase, **how), gpu(), question, model="llama")


def parallel(prediction: Prediction) -> Parallel:
    assert prediction.parallel is not None
    return prediction.parallel


def weights_of(prediction: Prediction) -> int:
    """Bytes of all stages together."""
    return sum(stage.memory.weights_bytes for stage in parallel(prediction).stages if stage.memory)


LAYOUTS = [
    Layout(tensor=2),
    Layout(data=4),
    Layout(data=4, shard="zero1"),
    Layout(data=4, shard="zero3"),
    Layout(pipeline=4),
    Layout(pipeline=4, schedule="gpipe"),
    Layout(pipeline=2, schedule="interleaved", interleave=2),
    Layout(tensor=2, pipeline=2, data=2, shard="zero2"),
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_rows_and_waits_add_up_to_the_whole(layout: Layout) -> None:
    prediction = predicted(layout, count=4)
    assert sum(row.runtime_s for row in prediction.with_launches) == pytest.approx(prediction.runtime_s.value)
    one = parallel(prediction)
    assert one.samples == 2 * 4 * layout.data
    assert one.samples_per_s.value == pytest.approx(one.samples / prediction.runtime_s.value)
    assert 0 <= one.exposed_s.value <= one.communication_s * (1 + 1e-9)
    assert len(one.stages) == layout.pipeline
    json.dumps(prediction.to_json())


def test_replicas_take_a_step_as_one_device_does_but_for_their_exchanges() -> None:
    alone, replicas = predicted(Layout(), count=3), predicted(Layout(data=4), count=3)
    added = ("collective", "elementwise", "movement")  # gradients are copied to their buckets and back
    some, more = (sum(r.runtime_s for r in one.rows if r.kind in added) for one in (alone, replicas))
    assert replicas.runtime_s.value == pytest.approx(alone.runtime_s.value + more - some)
    assert more > some
    energy, own = parallel(replicas).energy_j, parallel(alone).energy_j
    assert energy is not None
    assert own is not None
    assert energy.value > 4 * own.value


def test_exchanges_hide_behind_a_longer_backward_pass() -> None:
    slow = parallel(predicted(Layout(data=8)))
    many = parallel(predicted(Layout(data=8), count=8))
    assert many.communication_s == pytest.approx(slow.communication_s)
    assert slow.exposed_s.value < slow.communication_s
    assert many.exposed_share < slow.exposed_share


def test_a_pipeline_waits_less_with_more_micro_batches() -> None:
    few, many = (predicted(Layout(pipeline=4), count=count) for count in (4, 32))
    assert parallel(few).bubble_share > 0.3 > parallel(many).bubble_share > 0
    bubble = next(row for row in few.with_launches if row.kind == BUBBLE)
    assert bubble.runtime_s == pytest.approx(parallel(few).bubble_s)
    assert few.launch_row is None


def test_stages_share_the_work_and_the_weights_of_the_whole() -> None:
    whole = predicted(Layout(data=2))
    cut = predicted(Layout(pipeline=4))
    assert weights_of(cut) == weights_of(whole)
    assert cut.parameters == whole.parameters
    assert [len(stage.blocks) for stage in parallel(cut).stages] == [1, 1, 1, 1]
    work = sum(stage.forward_s + stage.backward_s for stage in parallel(cut).stages)
    (one,) = parallel(whole).stages
    assert work == pytest.approx(one.forward_s + one.backward_s, rel=0.05)


def test_shared_states_take_a_part_of_the_memory() -> None:
    def parts(layout: Layout) -> tuple[int, int, int]:
        memory = predicted(layout).memory
        assert memory is not None
        return memory.weights_bytes, memory.gradients_bytes, memory.optimizer_bytes

    weights, gradients, states = parts(Layout(data=4))
    assert states == pytest.approx(2 * gradients, rel=1e-4)  # and a count of steps for each
    assert parts(Layout(data=4, shard="zero1")) == pytest.approx((weights, gradients, states / 4), rel=1e-3)
    assert parts(Layout(data=4, shard="zero2")) == pytest.approx(
        (weights, gradients / 4, states / 4), rel=1e-3
    )
    assert parts(Layout(data=4, shard="zero3")) == pytest.approx(
        (weights / 4, gradients / 4, states / 4), rel=1e-2
    )


def test_the_first_stage_keeps_as_many_micro_batches_as_there_are_stages() -> None:
    def activations(layout: Layout, count: int) -> list[int]:
        stages = parallel(predicted(layout, count=count)).stages
        return [stage.memory.activations_bytes for stage in stages if stage.memory]

    few, many = (activations(Layout(pipeline=4), count) for count in (4, 32))
    assert few == many
    assert few[0] > few[1] > few[2]
    assert activations(Layout(pipeline=4, schedule="gpipe"), 32)[1] > 4 * many[1]


def test_selective_checkpointing_keeps_less_than_none_and_more_than_full() -> None:
    def activations(**how: bool) -> int:
        memory = predicted(Layout(tensor=2), **how).memory
        assert memory is not None
        return memory.activations_bytes

    full = activations(checkpointing=True)
    assert full < activations(checkpointing=True, selective=True) <= activations()


@pytest.mark.parametrize(
    "layout", [Layout(tensor=2), Layout(pipeline=2), Layout(tensor=2, pipeline=2)], ids=str
)
def test_a_decoders_step_goes_through_the_stages_one_after_the_other(layout: Layout) -> None:
    step = predicted(layout, DECODE)
    one = parallel(step)
    assert step.runtime_s.value == pytest.approx(sum(stage.busy_s for stage in one.stages))
    assert one.tokens == 2
    alone = predicted(Layout(), DECODE).memory
    assert alone is not None
    assert step.memory is not None
    assert step.memory.cache_bytes < 0.8 * alone.cache_bytes


def test_batches_in_flight_fill_the_stages() -> None:
    one, four = (parallel(predicted(Layout(pipeline=2), DECODE, count)) for count in (1, 4))
    assert four.samples == 4 * one.samples
    assert 1.2 < four.tokens_per_s.value / one.tokens_per_s.value <= 2.01  # type: ignore[union-attr]
    assert four.bubble_s == one.bubble_s  # of each batch's own way through the stages
    assert one.bubble_share == pytest.approx(one.bubble_s / one.runtime_s)
    slowest = four.stages[four.slowest].busy_s
    assert four.bubble_share == pytest.approx(1 - 4 * slowest / four.cycle_s) and four.bubble_share < 0.1


def test_a_generation_sums_its_steps() -> None:
    phase = Phase("generate", prompt=32, new_tokens=8)
    found, _ = predict_request(
        Request(LLAMA, 2, dtype="bfloat16", phase=phase, layout=Layout(pipeline=2)), gpu()
    )
    one = parallel(found)
    assert one.tokens == 2 * 8
    assert one.tokens_per_s is not None
    assert one.tokens_per_s.value == pytest.approx(2 * 8 / found.runtime_s.value)
    assert sum(row.runtime_s for row in found.with_launches) == pytest.approx(found.runtime_s.value)


def test_a_layout_that_does_not_fit_is_refused() -> None:
    predictor = gpu()
    with pytest.raises(InputError, match="takes 16 devices, and the cluster has 8"):
        predict_request(
            Request(LLAMA, 2, dtype="bfloat16", layout=Layout(data=16), cluster=Cluster(SPEC, 8)), predictor
        )
    with pytest.raises(InputError, match="orders pipeline stages, and there is one"):
        predict_request(
            Request(
                LLAMA,
                2,
                64,
                dtype="bfloat16",
                phase=Phase(TRAINING),
                layout=Layout(data=2, schedule="gpipe"),
            ),
            predictor,
        )
    with pytest.raises(InputError, match="the network has 4 repeated blocks"):
        predict_request(Request(LLAMA, 2, 64, dtype="bfloat16", layout=Layout(pipeline=9)), predictor)
    with pytest.raises(InputError, match="phase backward"):
        predict_request(
            Request(LLAMA, 2, 64, dtype="bfloat16", phase=Phase("backward"), layout=Layout(data=2)), predictor
        )


def test_fewer_micro_batches_than_stages_are_warned_of() -> None:
    warned = predicted(Layout(pipeline=4), count=2).warned
    assert [text for text in warned if "2 micro-batches for 4 pipeline stages" in text]


@pytest.mark.parametrize(
    ("layout", "names"),
    [
        (Layout(data=4), ["layers", "data"]),
        (Layout(pipeline=2), ["stage 0: layers", "stage 0: sends", "stage 1: layers", "stage 1: sends"]),
    ],
    ids=str,
)
def test_a_timeline_has_a_lane_for_each_stage_and_stream(layout: Layout, names: list[str]) -> None:
    found, question = followed(1, TRAINING), asked(layout, TRAINING, 3)
    prediction = predicted(layout, count=3)
    stage = Stage(TRAINING, found.work, prediction, lanes=lanes(found, gpu(), question))
    rows = drawn(prediction, [stage], gpu()).rows
    assert [row.name for row in rows] == names
    end = max(one.end_ns for row in rows for one in row.slices)
    assert end / 1e9 == pytest.approx(prediction.runtime_s.value, rel=1e-3)


def test_masters_widen_gradients_and_states() -> None:
    half, mixed = (predicted(Layout(data=2), masters=masters).memory for masters in (False, True))
    assert half is not None
    assert mixed is not None
    assert mixed.weights_bytes == half.weights_bytes
    assert mixed.gradients_bytes == 2 * half.gradients_bytes
    # moments in float32, and the masters
    assert mixed.optimizer_bytes == pytest.approx(3 * half.optimizer_bytes, rel=1e-4)


MIXTURE = (
    "num_hidden_layers=2&hidden_size=256&intermediate_size=512&vocab_size=512&num_attention_heads=4"
    "&num_key_value_heads=4&num_experts_per_tok=2"
)
SHARING = {
    "qwen2": f"transformers:Qwen2MoeForCausalLM?{MIXTURE}&moe_intermediate_size=128"
    "&num_experts=8&shared_expert_intermediate_size=256",
    "deepseek": f"transformers:DeepseekV3ForCausalLM?{MIXTURE}&moe_intermediate_size=128"
    "&n_routed_experts=8&n_shared_experts=1"
    "&first_k_dense_replace=0&q_lora_rank=64&kv_lora_rank=64&qk_rope_head_dim=16&qk_nope_head_dim=32"
    "&v_head_dim=32&n_group=1&topk_group=1",
    "glm": f"transformers:Glm4MoeForCausalLM?{MIXTURE}&moe_intermediate_size=128"
    "&n_routed_experts=8&n_shared_experts=1"
    "&first_k_dense_replace=0&n_group=1&topk_group=1",
    "llama4": f"transformers:Llama4ForCausalLM?{MIXTURE}&num_local_experts=8&interleave_moe_layer_step=1"
    "&intermediate_size_mlp=512&head_dim=64",
    "mixtral": f"transformers:MixtralForCausalLM?{MIXTURE}&num_local_experts=8",
}


@pytest.mark.parametrize("experts", [1, 2])
@pytest.mark.parametrize("name", SHARING)
def test_an_engine_sums_shared_and_chosen_experts_once(name: str, experts: int) -> None:
    layout: Any = {"tensor_parallel": 2, "expert_parallel": experts}
    step: Any = {"device": "h100-sxm", "phase": "decode", "context": 64, "dtype": "bfloat16", **layout}
    served = neuralpower.predict(SHARING[name], **step)
    eager = neuralpower.predict(SHARING[name], **step, run="eager")
    assert sums_of_mixtures(served) == 2, "one a layer"
    whole = ("mixtral", "qwen2")  # transformers keeps the shared expert of Qwen2 whole
    assert sums_of_mixtures(eager) == (2 if name in whole else 4)


def sums_of_mixtures(found: neuralpower.Prediction) -> int:
    """Exchanges of the mixtures of all layers."""
    inside = [row for row in found.rows if ".mlp" in row.path or ".feed_forward" in row.path]
    return sum(row.count for row in inside if row.kind == "collective")
