"""Seconds, joules and price of an image."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import neuralpower
from neuralpower.errors import InputError
from neuralpower.networks.diffusion.composed import part_inputs
from neuralpower.networks.diffusion.pictures import Picture, PictureRequest
from neuralpower.networks.diffusion.pipelines import described
from neuralpower.networks.inputs.size_limits import InputRequest
from neuralpower.networks.names.catalogue import catalogue
from neuralpower.networks.sources import resolve
from neuralpower.prediction.costs.images import Images
from neuralpower.prediction.fits.largest_picture import LargestPicture, largest_picture
from neuralpower.prediction.request import Request
from neuralpower.report.glance import glance, parallel_lines
from neuralpower.report.number_format import plain
from neuralpower.report.results.explored import picture_lines, point_columns
from neuralpower.report.results.ranked import rank_columns
from tests.networks.test_diffusion import folder


def test_a_pipeline_is_its_parts_times_their_runs(tmp_path: Path) -> None:
    root = str(folder(tmp_path))
    few = neuralpower.predict(root, device="h100-sxm", steps=2, dtype="bfloat16")
    many = neuralpower.predict(root, device="h100-sxm", steps=20, dtype="bfloat16")
    images = many.images
    assert isinstance(images, Images)
    parts = {part.name: part for part in images.parts}
    assert [*parts] == ["text_encoder", "unet", "scheduler", "vae", "image_processor"]
    assert (parts["unet"].times, parts["text_encoder"].times, images.passes) == (20, 2, 1)
    assert sum(part.runtime_s for part in images.parts) == pytest.approx(sum(r.runtime_s for r in many.rows))
    assert few.images is not None
    once = {part.name: part for part in few.images.parts}  # type: ignore[attr-defined]
    assert parts["unet"].runtime_s == pytest.approx(10 * once["unet"].runtime_s)
    assert parts["vae"].runtime_s == pytest.approx(once["vae"].runtime_s)
    assert many.memory is not None and few.memory is not None
    assert many.memory.value_bytes == few.memory.value_bytes


def test_images_of_a_prompt_share_the_time(tmp_path: Path) -> None:
    root = str(folder(tmp_path))
    found = neuralpower.predict(
        root, device="h100-sxm", steps=2, images=4, resolution="32x16", price="3.6/h", dtype="bfloat16"
    )
    images = found.images
    assert isinstance(images, Images)
    assert (images.made, found.batch_size, images.width, images.height) == (4, 4, 32, 16)
    assert images.runtime_per_image_s.value == pytest.approx(found.runtime_s.value / 4)
    assert images.images_per_hour.value == pytest.approx(3600 * 4 / found.runtime_s.value)
    assert images.energy_per_image_j is not None and found.energy_j is not None
    assert images.energy_per_image_j.value == pytest.approx(found.energy_j.value / 4)
    lines = found.footprint.lines  # type: ignore[union-attr]
    assert [line.name for line in lines] == ["energy per image", "price per image"]
    assert lines[1].value.value == pytest.approx(3.6 / 3600 * found.runtime_s.value / 4)
    text = "\n".join(glance(found))
    assert "(32x16, 2 steps, guided)" in text and "per image" in text and "images/h" in text
    told = json.loads(json.dumps(found.to_json()))
    assert told["images"]["steps"] == 2 and told["images"]["parts"][1]["name"] == "unet"


def test_numbers_that_cannot_be_are_refused(tmp_path: Path) -> None:
    root = str(folder(tmp_path))
    for options, said in (
        ({"steps": 0}, "--steps 0: must be a whole number, 1 or more"),
        ({"resolution": "big"}, "--resolution big: write WIDTHxHEIGHT"),
        ({"guidance": "maybe"}, "guidance"),
        ({"reuse_steps": 1}, "--reuse-steps 1: a share of the steps, from 0 to below 1"),
        ({"reuse_steps": -0.1}, "--reuse-steps -0.1"),
        ({"offload": "cpu"}, "offload"),
    ):
        with pytest.raises(InputError, match=said):
            neuralpower.predict(root, device="h100-sxm", **options)


OFFLOADS = (None, "model", "group", "sequential")


@pytest.fixture(scope="module")
def offloaded(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str | None, Any]]:
    """A pipeline's folder, and its prediction by where weights stay while they are not needed."""
    root = str(folder(tmp_path_factory.mktemp("offloaded")))
    how: dict[str, Any] = {"device": "h100-sxm", "steps": 4, "guidance": "off", "dtype": "bfloat16"}
    return root, {offload: neuralpower.predict(root, offload=offload, **how) for offload in OFFLOADS}


def test_offloaded_weights_take_less_memory_and_copies(offloaded: tuple[str, dict[str | None, Any]]) -> None:
    root, by_offload = offloaded
    plain = by_offload[None]
    module = resolve(root).build("meta", torch.bfloat16)
    sizes = {
        name: sum(p.nbytes for p in (*part.parameters(), *part.buffers()))
        for name, part in module.named_children()
    }
    copied = {}
    for offload in OFFLOADS[1:]:
        found = by_offload[offload]
        copied[offload] = {row.path: row for row in found.rows if row.kind == "transfer"}
        assert found.memory.low_bytes < plain.memory.low_bytes
        assert found.runtime_s.value - plain.runtime_s.value == pytest.approx(
            sum(row.runtime_s for row in copied[offload].values())
        )
        assert found.energy_j.value >= plain.energy_j.value
        assert any("copies from the host" in said for said in found.assumptions)
    assert {name: row.bytes for name, row in copied["model"].items()} == {
        name: 2 * sizes[name] for name in ("text_encoder", "unet", "vae")
    }
    assert copied["sequential"]["unet"].bytes == 4 * sizes["unet"]
    assert copied["sequential"]["text_encoder"].bytes == sizes["text_encoder"]
    model, group, each = (by_offload[one].memory.low_bytes for one in OFFLOADS[1:])
    assert each <= group <= model


def test_groups_are_copied_while_others_run(offloaded: tuple[str, dict[str | None, Any]]) -> None:
    _, by_offload = offloaded
    times = {offload: found.runtime_s.value for offload, found in by_offload.items()}
    assert times[None] <= times["group"] < times["sequential"]


@pytest.mark.parametrize(("share", "runs"), [(0, 10), (0.3, 7), (0.99, 1)])
def test_reused_steps_leave_out_runs_of_the_denoiser(tmp_path: Path, share: float, runs: int) -> None:
    root = str(folder(tmp_path))
    found = neuralpower.predict(root, device="h100-sxm", steps=10, reuse_steps=share, dtype="bfloat16")
    times = {part.name: part.times for part in found.images.parts}  # type: ignore[union-attr]
    assert (times["unet"], times["scheduler"]) == (runs, 10)


def test_a_pipeline_is_made_to_fit_by_offloading(tmp_path: Path) -> None:
    root = str(folder(tmp_path))
    most = neuralpower.fit(root, device="h100-sxm", dtype="bfloat16").memory.high_bytes
    found = neuralpower.fit(root, device="h100-sxm", dtype="bfloat16", memory=most - 1)
    assert any("--offload model" in remedy.options for remedy in found.remedies)


def test_fit_gives_the_largest_resolution(tmp_path: Path) -> None:
    root = str(folder(tmp_path))
    found = neuralpower.fit(root, memory="4GB", dtype="bfloat16", resolution="128x64")
    assert found.fits and found.picture is not None and found.picture.options == ""
    width, height = found.picture.width, found.picture.height
    assert width == 2 * height > 128 and height % 64 == 0 and found.picture.frames is None
    assert f"largest resolution: {width}x{height}" in str(found)
    told = found.to_json()["largest_picture"]
    assert told == {"options": "", "width": width, "height": height, "frames": None}


def test_devices_are_ranked_by_images(tmp_path: Path) -> None:
    root = str(folder(tmp_path))
    found = neuralpower.rank(root, device="h100-sxm,l40s", steps=2, dtype="bfloat16", by="images/h")
    assert found.standing == found.to_json()["by"] == "images/h"
    names = [*rank_columns(found)]
    assert names[2:4] == ["s/image", "images/h"] and "J/image" in names
    first = found.devices[0]
    assert rank_columns(found)["images/h"](first) == plain(3600 * first.each.per_s.value)
    assert "tokens" not in str(found)


def test_a_sweep_and_a_comparison_tell_images_an_hour(tmp_path: Path) -> None:
    root = str(folder(tmp_path))
    found = neuralpower.sweep(root, device="h100-sxm", steps=2, dtype="bfloat16", batch_size=(1, 2))
    one = neuralpower.predict(root, device="h100-sxm", steps=2, dtype="bfloat16")
    assert found.points[0].runtime_s == pytest.approx(one.runtime_s.value)
    columns = point_columns(found)
    assert {"s/image", "images/h", "per image"} <= {*columns} and "samples" not in columns
    assert columns["images/h"](found.points[1]) == plain(2 * 3600 / (found.points[1].runtime_s or 1))
    both = neuralpower.compare(root, root, device="h100-sxm", steps=2, dtype="bfloat16")
    assert both.a_images is not None and "images_per_hour" in both.to_json()["b"]["images"]
    assert both.a_images.runtime_per_image_s.value == pytest.approx(one.runtime_s.value)
    assert "s/image" in str(both) and "images/h" in str(both) and "J/image" in str(both)


def test_replicas_make_images_and_no_tokens(tmp_path: Path) -> None:
    root, how = str(folder(tmp_path)), {"devices": "2xh100-sxm", "steps": 2, "dtype": "bfloat16"}
    found = neuralpower.predict(root, data_parallel=2, images=2, **how)
    assert found.parallel is not None and found.parallel.tokens_per_s is None
    text = "\n".join((*glance(found), *parallel_lines(found)))
    assert f"{plain(4 * 3600 / found.runtime_s.value)} images/h" in text
    assert "tokens/s" not in text and "samples/s" not in text
    with pytest.raises(InputError, match="tensor 2: .*--data-parallel 2"):
        neuralpower.predict(root, tensor_parallel=2, **how)


def test_the_largest_picture_is_sought_by_each_side_and_frame() -> None:
    picture = Picture("video", 50, True, 1, 1, 832, 480, 81, multiple=16, cut=4)

    def memory_of(request: Request) -> Any:
        width, height = request.picture.resolution or (832, 480)
        return SimpleNamespace(high_bytes=width * height * (request.picture.frames or 81))

    request = Request("wan2.1-t2v-1.3b")
    found = largest_picture(request, picture, 832 * 480 * 100, memory_of, "--tiling")
    assert found == LargestPicture("--tiling", 880, 512, 97)
    assert largest_picture(request, picture, 1, memory_of, "") == LargestPicture("", 0, 0, 0)
    lines = picture_lines(found)
    assert lines == ["largest resolution with --tiling: 880x512", "most frames with --tiling: 97"]


def test_what_is_no_pipeline_cannot_be_offloaded(tmp_path: Path) -> None:
    entry, request = catalogue()["flux.1-dev"], InputRequest(picture=PictureRequest(offload="model"))
    with pytest.raises(InputError, match=r"--offload model: flux\.1-dev/transformer runs alone"):
        part_inputs(described(entry.name, entry.config), "transformer", torch.nn.Identity(), request)
    with pytest.raises(InputError, match=r"--offload model: .*/unet is not a pipeline"):
        neuralpower.predict(f"{folder(tmp_path)}/unet", device="h100-sxm", offload="model")
    with pytest.raises(InputError, match=r"--reuse-steps 0\.3: resnet18 is not a pipeline"):
        neuralpower.predict("resnet18", device="h100-sxm", reuse_steps=0.3)


def test_adapters_of_a_denoiser_are_trained(tmp_path: Path) -> None:
    found = neuralpower.predict(
        f"{folder(tmp_path)}/unet", device="h100-sxm", phase="training", lora=4, dtype="bfloat16"
    )
    assert found.training is not None and "backward" in found.training.steps
    assert any("the others are frozen" in said for said in found.assumptions)
