"""Seconds, joules and price of an image."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import neuralpower
from neuralpower.errors import InputError
from neuralpower.prediction.images import Images
from neuralpower.report.glance import glance
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
    ):
        with pytest.raises(InputError, match=said):
            neuralpower.predict(root, device="h100-sxm", **options)
