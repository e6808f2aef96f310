"""Ranks that share a picture's tokens or the passes of a guided step, and networks that steer a denoiser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import neuralpower
from neuralpower.devices.cluster import Layout, layout_of
from neuralpower.errors import InputError
from neuralpower.layers.attention import Attention
from neuralpower.layers.collective import Collective
from neuralpower.layers.convolution import Conv2d
from neuralpower.layers.matmul import Matmul
from neuralpower.networks.diffusion.classes import ENCODER, network_source, steered
from neuralpower.networks.diffusion.composed import part_inputs, pictured
from neuralpower.networks.diffusion.pictures import Picture, PictureRequest
from neuralpower.networks.diffusion.pipelines import described
from neuralpower.networks.diffusion.sequence import shared_out
from neuralpower.networks.inputs.size_limits import InputRequest
from neuralpower.networks.names.catalogue import catalogue
from neuralpower.platforms import CPU
from neuralpower.quantisation.asked import parsed
from neuralpower.quantisation.weights import LINEAR, Weight
from neuralpower.report.results.layouts import layouts_table
from neuralpower.trace.passes.sequence_ranks import sequence_ranks
from neuralpower.trace.question import Question
from neuralpower.trace.records import Task, Trace
from neuralpower.trace.tracer import trace
from tests.networks.test_diffusion import folder


def shared(name: str, layout: Layout, **picture: Any) -> Any:
    """(Picture, latents) that a rank has of a pipeline of the catalogue."""
    entry = catalogue()[name]
    pipeline = described(entry.name, entry.config)
    request = InputRequest(picture=PictureRequest(layout=layout, **picture))
    return shared_out(pipeline, *pictured(pipeline, request))


def test_a_rank_has_a_part_of_the_tokens() -> None:
    picture, latents = shared("flux.1-dev", Layout(ulysses=4, ring=2))
    assert picture.tokens == 4096 // 8 + 512 // 8  # the text stands beside the image
    assert latents.height * latents.width // 4 == 512 and latents.tokens == {"encoder_hidden_states": 64}
    assert (picture.width, picture.height) == (1024, 1024)
    picture, latents = shared("stable-diffusion-3.5-large", Layout(ring=8))
    assert picture.tokens == 512 and latents.tokens["encoder_hidden_states"] == 333  # which 8 do not divide
    picture, latents = shared("wan2.1-t2v-1.3b", Layout(ulysses=4, ring=2))
    assert picture.tokens == 21 * 30 * 52 // 8 == latents.frames * latents.height * latents.width // 4
    assert shared("flux.1-dev", Layout())[0].tokens == 0


def test_ranks_that_divide_nothing_are_refused() -> None:
    with pytest.raises(
        InputError, match=r"--ulysses-degree 2: 2 ranks do not divide the 3,969 tokens .*choose 1"
    ):
        shared("flux.1-dev", Layout(ulysses=2), resolution=(1008, 1008))
    with pytest.raises(InputError, match=r"--ring-degree 2: .* a UNet, .*; write --data-parallel 2"):
        shared("stable-diffusion-xl", Layout(ring=2))
    with pytest.raises(InputError, match=r"--guidance-degree 2: a step of flux.1-dev has one pass"):
        shared("flux.1-dev", Layout(guidance=2))
    with pytest.raises(InputError, match="guidance 3: a guided step has two passes"):
        Layout(guidance=3)
    entry = catalogue()["flux.1-dev"]
    request = InputRequest(picture=PictureRequest(layout=Layout(ring=2)))
    with pytest.raises(InputError, match="--ring-degree 2: flux.1-dev/transformer runs alone"):
        part_inputs(described(entry.name, entry.config), "transformer", torch.nn.Identity(), request)


def test_two_ranks_share_the_passes_of_a_guided_step() -> None:
    both, apart = (
        shared("stable-diffusion-3.5-large", layout)[0] for layout in (Layout(), Layout(guidance=2))
    )
    assert (both.batch, apart.batch) == (2, 1)  # one batch of both
    both, apart = (shared("wan2.1-t2v-1.3b", layout)[0] for layout in (Layout(), Layout(guidance=2)))
    assert both.times["transformer"] == 2 * apart.times["transformer"]  # one pass after the other


def test_layouts_of_pictures_have_letters_and_strides() -> None:
    layout = layout_of("ulysses4 ring2 cfg2 dp2")
    assert layout == Layout(ulysses=4, ring=2, guidance=2, data=2)
    assert (layout.ranks, layout.sequences, layout.short) == (32, 8, "dp2 ulysses4 ring2 cfg2")
    assert [layout.stride(group) for group in ("ulysses", "ring", "guidance", "data")] == [1, 4, 8, 16]


HEADS = {"query_heads": 8, "key_heads": 8, "head_size": 64, "causal": False, "masked": False}


def tasks_of(layer: Any, layout: Layout, tokens: int) -> list[Task]:
    """What becomes of a call of a denoiser on ranks that have `tokens` each."""
    picture = Picture(
        "image", 4, True, 1, 1, denoisers=("transformer",), layout=layout, tokens=tokens, latents=99
    )
    task = Task("transformer.block", layer, share=4.0, at=7)
    return [*sequence_ranks(Trace((), tasks=(task,), picture=picture), Question(platform=CPU)).tasks]


def attention(**sizes: int) -> Attention:
    return Attention(dtype="float32", batch=2, **{**HEADS, **sizes})


def test_ulysses_ranks_attend_to_all_tokens_with_a_part_of_the_heads() -> None:
    found = tasks_of(attention(query_length=100, key_length=100), Layout(ulysses=4), 100)
    layers = [task.layer for task in found]
    moved = [layer for layer in layers if isinstance(layer, Collective)]
    assert [layer.function for layer in moved] == ["all_to_all"] * 4 + ["all_gather"]
    assert moved[0].elements == 2 * 8 * 100 * 64 and moved[0].ranks == 4
    (done,) = (layer for layer in layers if isinstance(layer, Attention))
    assert (done.query_heads, done.query_length, done.key_length) == (2, 400, 400)
    assert {task.share for task in found} == {4.0}
    with pytest.raises(
        InputError, match="--ulysses-degree 3: attention has 8 heads, .* choose one of 1, 2, 4, 8"
    ):
        tasks_of(attention(query_length=100, key_length=100), Layout(ulysses=3), 100)


def test_keys_come_around_a_ring_while_others_are_attended_to() -> None:
    found = tasks_of(attention(query_length=110, key_length=110), Layout(ring=3), 100)  # 10 of the text
    sends = [task for task in found if isinstance(task.layer, Collective) and task.stream]
    assert [task.layer.elements for task in sends] == [2 * 2 * 8 * 100 * 64] * 2  # type: ignore[attr-defined]
    done = [task for task in found if isinstance(task.layer, Attention)]
    assert [task.layer.key_length for task in done] == [100, 100, 110]  # type: ignore[attr-defined]
    assert [task.waits for task in done] == [(), (sends[0].event,), (sends[1].event,)]
    merged = [task for task in found if task.layer.kind == "elementwise"]
    assert merged and {task.layer.dtype for task in merged} == {"float32"}


def test_attention_to_the_text_stays() -> None:
    across = tasks_of(attention(query_length=100, key_length=77), Layout(ring=2), 100)
    assert [task.layer.kind for task in across] == ["attention", "collective"]


def test_keys_of_linear_attention_come_around_a_ring_or_change_places() -> None:
    state = Matmul(dtype="float32", batch=16, rows=33, inner=100, columns=32)
    found = tasks_of(state, Layout(ring=3), 100)
    sends = [task for task in found if isinstance(task.layer, Collective) and task.stream]
    assert [task.layer.elements for task in sends] == [2 * 16 * 100 * 32] * 2  # type: ignore[attr-defined]
    products = [task.layer for task in found if isinstance(task.layer, Matmul)]
    of_queries = Matmul(dtype="float32", batch=16, rows=33, inner=32, columns=100)
    assert products == [state, state, of_queries, state, of_queries]
    assert [task.waits for task in found if task.waits] == [(send.event,) for send in sends]
    turned = [task.layer for task in tasks_of(state, Layout(ulysses=2), 100)]
    moved = [layer for layer in turned if isinstance(layer, Collective)]
    assert [layer.function for layer in moved] == ["all_to_all"] * 4 + ["all_gather"]
    assert moved[0].elements == 16 * 100 * 32


def test_windows_reach_into_the_parts_of_two_neighbours() -> None:
    sizes = {"in": (8, 32), "kernel": (3, 3), "stride": (1, 1), "padding": (1, 1), "dilation": (1, 1)}
    channels = {"in_channels": 64, "out_channels": 64, "groups": 64, "bias": True}
    layer = Conv2d(dtype="float32", batch=2, **channels, **Conv2d.fields_of(sizes))
    found = [task.layer for task in tasks_of(layer, Layout(ring=2), 256)]
    rows = [one for one in found if isinstance(one, Collective) and one.function == "send_recv"]
    assert [one.elements for one in rows] == [2 * 64 * 32] * 2
    edges = [one for one in found[1:] if isinstance(one, Conv2d)]
    assert [edge.output_shape("") for edge in edges] == [(2, 64, 3, 32)] * 2
    patches = Conv2d(dtype="float32", batch=2, **channels, **Conv2d.fields_of({**sizes, "stride": (4, 4)}))
    assert [one.kind for one in (task.layer for task in tasks_of(patches, Layout(ring=2), 256))] == [
        "conv2d",
        "collective",
    ]


def weight(name: str) -> Weight:
    return Weight(name, LINEAR, (64, 64), "bfloat16", 2 * 64 * 64)


def test_parts_have_weights_of_their_own() -> None:
    scheme = parsed("transformer=nf4, text_encoder=int8")
    found = scheme.forms(
        [weight(f"{part}.to_q.weight") for part in ("transformer", "text_encoder", "vae")], {}
    )
    assert [form and form.dtype for form in found.values()] == ["nf4", "int8", None]
    with pytest.raises(InputError, match="unknown part .* 'transformr'"):
        parsed("transformr=nf4").forms([weight("transformer.to_q.weight")], {})
    for text in ("vae=", "vae=nf4,vae=int8", "=nf4"):
        with pytest.raises(InputError, match="write each part once"):
            parsed(text)


def test_a_controlnet_and_an_adapter_run_beside_the_denoiser(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = str(folder(tmp_path))
    monkeypatch.setitem(ENCODER, "num_hidden_layers", 1)
    found = neuralpower.predict(
        root, device="h100-sxm", steps=3, controlnet="on", ip_adapter=True, dtype="bfloat16"
    )
    times = {part.name: part.times for part in found.images.parts}  # type: ignore[union-attr]
    assert (times["controlnet"], times["unet"], times["image_encoder"]) == (3, 3, 1)
    assert any(row.path.startswith("unet") and "to_k_ip" in row.path for row in found.rows)
    with pytest.raises(InputError, match=r"--controlnet on: .* and zoo:alexnet is not one"):
        neuralpower.predict("zoo:alexnet", device="h100-sxm", controlnet="on")


def test_the_usual_controlnet_of_stable_diffusion_3_runs_without_values() -> None:
    entry = catalogue()["stable-diffusion-3.5-medium"]
    pipeline = steered(described(entry.name, entry.config), None, usual=True, adapter=False)
    config = {**pipeline.parts["controlnet"], "num_layers": 1}
    source = network_source("controlnet", config)
    module = source.build("meta", torch.bfloat16)
    assert {tensor.device.type for tensor in (*module.parameters(), *module.buffers())} == {"meta"}
    inputs = source.inputs(module, InputRequest(dtype=torch.bfloat16))
    assert inputs.kwargs["controlnet_cond"].shape[1] == 17  # latents, and a mask
    assert trace(module, inputs.args, inputs.kwargs).calls


def test_layouts_of_a_pipeline_say_images(tmp_path: Path) -> None:
    root = str(folder(tmp_path))
    found = neuralpower.parallel(root, devices="2xh100-sxm", steps=2, dtype="bfloat16")
    assert {one.layout.short for one in found.fitting} == {"dp2", "cfg2"}
    best = found.fitting[0]
    assert best.images_per_hour == pytest.approx(3600 * best.samples_per_s)  # type: ignore[operator]
    text = layouts_table(found)
    (header,) = (line for line in text.splitlines() if line.startswith("layout "))
    assert "images/h" in header and "samples" not in header and text.count("1 layout skipped") == 2
    guided = neuralpower.predict(root, device="h100-sxm", steps=2, guidance_degree=2, dtype="bfloat16")
    assert guided.images.energy_per_image_j.value == pytest.approx(2 * guided.energy_j.value)  # type: ignore[union-attr]
    with pytest.raises(InputError, match="pipeline 2: a pipeline of diffusion runs whole"):
        neuralpower.predict(root, device="h100-sxm", pipeline_parallel=2, dtype="bfloat16")


def test_training_of_a_whole_pipeline_names_its_denoiser(tmp_path: Path) -> None:
    root = str(folder(tmp_path))
    with pytest.raises(
        InputError, match=r"phase training: .*; train its denoiser: .*/unet --phase training --lora"
    ):
        neuralpower.predict(root, device="h100-sxm", phase="training", dtype="bfloat16")
