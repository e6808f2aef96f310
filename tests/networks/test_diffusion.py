"""Networks of diffusers, and the pipelines that they make up."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch

from neuralpower.errors import InputError, ModelError
from neuralpower.networks.diffusion.classes import CLASS, check_installed
from neuralpower.networks.diffusion.composed import pictured
from neuralpower.networks.diffusion.families import FAMILIES, Pipeline, spatial_ratio, temporal_ratio
from neuralpower.networks.diffusion.pictures import PictureRequest
from neuralpower.networks.diffusion.pipelines import described
from neuralpower.networks.inputs.size_limits import InputRequest
from neuralpower.networks.names.catalogue import catalogue
from neuralpower.networks.sources import resolve
from neuralpower.networks.sources.base import check_model
from neuralpower.trace.tracer import trace

UNET: dict[str, Any] = {
    **{CLASS: "UNet2DConditionModel", "sample_size": 8, "block_out_channels": [32, 64], "norm_num_groups": 8},
    **{"down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"], "attention_head_dim": 8},
    **{
        "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"],
        "cross_attention_dim": 32,
        "layers_per_block": 1,
    },
}
VAE: dict[str, Any] = {
    **{CLASS: "AutoencoderKL", "block_out_channels": [16, 32], "norm_num_groups": 8, "latent_channels": 4},
    **{"down_block_types": ["DownEncoderBlock2D"] * 2, "up_block_types": ["UpDecoderBlock2D"] * 2},
}
CLIP: dict[str, Any] = {
    **{"architectures": ["CLIPTextModel"], "model_type": "clip_text_model", "hidden_size": 32},
    **{"intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100},
}
PARTS = {
    "unet": ["diffusers", "UNet2DConditionModel"],
    "vae": ["diffusers", "AutoencoderKL"],
    "text_encoder": ["transformers", "CLIPTextModel"],
    "scheduler": ["diffusers", "PNDMScheduler"],
    "tokenizer": ["transformers", "CLIPTokenizer"],
    "safety_checker": [None, None],
}


def folder(tmp_path: Path, **index: Any) -> Path:
    """A small pipeline; `index` changes its model_index.json."""
    root = tmp_path / "tiny"
    for name, values in (("unet", UNET), ("vae", VAE), ("text_encoder", CLIP)):
        (root / name).mkdir(parents=True)
        (root / name / "config.json").write_text(json.dumps(values))
    (root / "model_index.json").write_text(json.dumps({CLASS: "StableDiffusionPipeline", **PARTS, **index}))
    return root


def asked(name: str, **picture: Any) -> Any:
    """(Picture, latents) of a pipeline of the catalogue."""
    entry = catalogue()[name]
    pipeline = described(entry.name, entry.config)
    return pictured(pipeline, InputRequest(picture=PictureRequest(**picture)))


def test_a_class_is_built_from_its_defaults_and_overrides() -> None:
    source = resolve("diffusers:FluxTransformer2DModel?num_layers=1&num_single_layers=1&guidance_embeds=true")
    module = source.build("meta", torch.bfloat16)
    inputs = source.inputs(module, InputRequest(2, dtype=torch.bfloat16), "meta")
    assert inputs.kwargs["hidden_states"].shape == (2, 4096, 64)
    assert inputs.kwargs["guidance"].shape == (2,)
    found = trace(module, inputs.args, dict(inputs.kwargs))
    assert (found.method, found.unmodelled) == ("meta", ())
    assert {layer.kind for layer in found.layers} >= {"linear", "attention", "norm"}


@pytest.mark.parametrize(
    "name",
    """
    UNet2DConditionModel?layers_per_block=1 UNet2DModel?layers_per_block=1 AutoencoderKL ControlNetModel
    AutoencoderTiny SD3Transformer2DModel?num_layers=1 WanTransformer3DModel?num_layers=1
    PixArtTransformer2DModel?num_layers=1 SanaTransformer2DModel?num_layers=1 VQModel
    CogVideoXTransformer3DModel?num_layers=1 LTXVideoTransformer3DModel?num_layers=1
    StableAudioDiTModel?num_layers=1 QwenImageTransformer2DModel?num_layers=1
    """.split(),
)
@pytest.mark.filterwarnings("ignore::FutureWarning")  # of the library about itself
def test_networks_of_diffusers_get_inputs_that_fit(name: str) -> None:
    source = resolve(f"diffusers:{name}")
    module = source.build("meta")
    inputs = source.inputs(module, InputRequest(), "meta")
    with torch.no_grad():
        module(*inputs.args, **inputs.kwargs)


def test_an_unknown_class_and_an_unknown_field_are_told() -> None:
    with pytest.raises(ModelError, match=r"unknown model class of diffusers [\d.]+ 'UNet2DConditionModl'"):
        resolve("diffusers:UNet2DConditionModl")
    with pytest.raises(ModelError, match="unknown field of UNet2DModel .* 'layers'"):
        resolve("diffusers:UNet2DModel?layers=1")


def test_without_the_library_the_command_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"diffusers is not installed; pip install diffusers"):
        check_installed()


def test_a_folder_is_read_by_its_configurations_alone(tmp_path: Path) -> None:
    source = resolve(folder(tmp_path))
    module = source.build("meta", torch.bfloat16)
    request = InputRequest(1, dtype=torch.bfloat16, picture=PictureRequest(steps=4, images=3))
    inputs = source.inputs(module, request, "meta")
    assert [name for name, _ in module.named_children()] == [
        *("unet", "vae", "text_encoder", "scheduler", "image_processor")
    ]
    assert inputs.picture is not None
    assert inputs.picture.times == {"text_encoder": 2, "unet": 4, "scheduler": 4, "vae": 1}
    assert inputs.kwargs["calls"]["unet"]["sample"].shape == (6, 4, 8, 8)  # with and without the text
    assert inputs.kwargs["calls"]["vae"]["latents"].shape == (3, 4, 8, 8)
    found = trace(module, inputs.args, dict(inputs.kwargs))
    assert {call.path.partition(".")[0] for call in found.calls} >= {
        "unet",
        "vae",
        "text_encoder",
        "scheduler",
    }


def test_a_part_stands_alone(tmp_path: Path) -> None:
    root = folder(tmp_path)
    unet = resolve(root / "unet").build("meta")
    assert type(unet).__name__ == "UNet2DConditionModel"
    decoder = resolve("stable-diffusion-1.5/vae")
    module = decoder.build("meta")
    inputs = decoder.inputs(module, InputRequest(picture=PictureRequest(resolution=(256, 128))), "meta")
    assert inputs.kwargs["latents"].shape == (1, 4, 16, 32)
    assert module(**inputs.kwargs).shape == (1, 3, 128, 256)


@pytest.mark.parametrize(
    ("index", "said"),
    [
        (
            {"unet": ["my_unet", "MyUNet"]},
            r"its part unet is a MyUNet of its own code \(my_unet\), which is never",
        ),
        ({"unet": ["diffusers", "MyUNet"]}, "unknown model class of diffusers"),
        ({CLASS: "MyPipeline"}, "how a MyPipeline runs is not known"),
        ({CLASS: 3}, "names no class of pipelines"),
    ],
)
def test_what_a_folder_cannot_be_is_refused(tmp_path: Path, index: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        resolve(folder(tmp_path, **index))


def test_a_folder_without_an_index_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"holds no config\.json or model_index\.json"):
        resolve(tmp_path)


def test_data_may_name_pipelines(tmp_path: Path) -> None:
    check_model("flux.1-dev")
    check_model("diffusers:UNet2DModel")


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (
            ("double_blocks.0.img_attn.norm.key_norm.scale", "guidance_in.in_layer.bias", "img_in.weight"),
            r"looks like black-forest-labs/FLUX\.1-dev; write its name instead",
        ),
        (("blocks.47.attn.qkv_x.weight", "t5_yproj.weight"), "names no architecture; put its config.json"),
    ],
)
def test_a_checkpoint_in_one_file_says_what_it_looks_like(
    names: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    header = {
        name: {"dtype": "F32", "shape": [1, 64], "data_offsets": [256 * i, 256 * (i + 1)]}
        for i, name in enumerate(names)
    }
    told = json.dumps(header).encode()
    file = tmp_path / "checkpoint.safetensors"
    file.write_bytes(struct.pack("<Q", len(told)) + told + bytes(256 * len(names)))
    with pytest.raises(ModelError, match=said):
        resolve(file)


def test_overrides_belong_to_a_part() -> None:
    with pytest.raises(ModelError, match=r"write flux\.1-dev/transformer\?num_layers=2"):
        resolve("flux.1-dev?num_layers=2")
    module = resolve("flux.1-dev/transformer?num_layers=2&num_single_layers=1").build("meta")
    assert len(module.get_submodule("transformer_blocks")) == 2


def test_guidance_doubles_the_batch_or_the_passes_or_neither() -> None:
    picture, latents = asked("stable-diffusion-3.5-large")
    assert (picture.steps, picture.guidance, latents.batch, picture.times["transformer"]) == (28, True, 2, 28)
    picture, latents = asked("wan2.1-t2v-1.3b")
    assert (picture.guidance, latents.batch, picture.times["transformer"]) == (True, 1, 100)
    picture, latents = asked("flux.1-dev", guidance="on")
    assert (picture.guidance, latents.batch, picture.times["transformer"]) == (False, 1, 50)
    assert picture.notes == (
        "flux.1-dev is distilled: guidance is an input of each step and takes no second pass",
    )
    assert asked("wan2.1-t2v-1.3b", guidance="off")[0].times["transformer"] == 50
    assert not asked("sdxl-turbo")[0].guidance


def test_two_denoisers_share_the_steps() -> None:
    picture, _ = asked("wan2.2-t2v-a14b", guidance="off")
    assert picture.times["transformer"] + picture.times["transformer_2"] == picture.steps == 40


def test_sizes_follow_the_decoder() -> None:
    _, latents = asked("wan2.1-t2v-14b", resolution=(1280, 720), frames=81)
    assert (latents.width, latents.height, latents.frames) == (160, 90, 21)
    _, latents = asked("sana1.5-1.6b")
    assert (latents.width, latents.height) == (32, 32)
    _, latents = asked("ltx-video")
    assert (latents.width, latents.height, latents.frames) == (22, 16, 21)


def test_the_decoder_works_on_tiles_or_one_image_at_a_time() -> None:
    assert asked("flux.1-dev", resolution=(1024, 1024), tiling=True)[0].times["vae"] == 9
    assert asked("flux.1-dev", images=4, slicing=True)[0].times["vae"] == 4


@pytest.mark.parametrize(
    ("name", "picture", "said"),
    [
        ("flux.1-dev", {"resolution": (1000, 1024)}, "multiples of 16 pixels; the nearest is 992x1024"),
        ("sana1.5-1.6b", {"resolution": (1000, 1000)}, "multiples of 32 pixels; the nearest is 992x992"),
        ("stable-diffusion-1.5", {"resolution": (4, 4)}, "multiples of 8 pixels; the nearest is 8x8"),
        ("wan2.1-t2v-1.3b", {"frames": 80}, "films of 4k \\+ 1 frames; the nearest is 81"),
        ("mochi-1", {"frames": 20}, "films of 6k \\+ 1 frames; the nearest is 19"),
        ("flux.1-dev", {"frames": 5}, "makes no films; leave it out"),
        ("stable-audio-open-1.0", {"resolution": (8, 8)}, "makes sounds; leave it out"),
        ("flux.1-dev", {"steps": 10**6}, "from 1 to 10,000"),
    ],
)
def test_what_a_pipeline_cannot_make_is_refused(name: str, picture: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        asked(name, **picture)


def test_a_network_that_is_no_pipeline_has_no_resolution() -> None:
    source = resolve("zoo:deep_mnist")
    with pytest.raises(InputError, match=r"--steps 4: zoo:deep_mnist is not a pipeline of diffusion"):
        source.inputs(source.build(), InputRequest(picture=PictureRequest(steps=4)))


def test_every_pipeline_of_the_catalogue_is_of_a_known_family() -> None:
    pipelines = {name: entry for name, entry in catalogue().items() if CLASS in entry.config}
    assert len(pipelines) >= 20
    for name, entry in pipelines.items():
        found: Pipeline = described(name, entry.config)
        assert found.kind in FAMILIES, name
        assert found.family.task == entry.task, name
        assert found.denoisers, name
        assert set(found.family.texts) >= set(found.encoders), name
        assert entry.source, name
        pictured(found, InputRequest())


def test_ratios_of_autoencoders() -> None:
    parts = {
        name: catalogue()[name].config["vae"] for name in ("cogvideox-2b", "wan2.1-t2v-14b", "ltx-video")
    }
    assert [spatial_ratio(one) for one in parts.values()] == [8, 8, 32]
    assert [temporal_ratio(one) for one in parts.values()] == [4, 4, 8]
