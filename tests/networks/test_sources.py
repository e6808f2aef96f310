"""The MODEL grammar and the inputs of every modality, on tiny configurations that really run."""

from __future__ import annotations

import json
import logging
import random
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from neuralpower.errors import InputError, ModelError
from neuralpower.files.stages import heard_by
from neuralpower.networks.decoder import pass_of
from neuralpower.networks.phases import Phase
from neuralpower.networks.running import with_values
from neuralpower.networks.sources import InputRequest, resolve
from neuralpower.trace.tracer import trace


def part(name: str, fields: str) -> str:
    """The overrides of a configuration as those of one that holds it by that name."""
    return "&".join(f"{name}.{field}" for field in fields.split("&"))


SMALL = "hidden_size=32&num_attention_heads=2&intermediate_size=64"
TEXT = f"num_hidden_layers=1&{SMALL}&vocab_size=99"
IMAGE = f"num_hidden_layers=1&{SMALL}&image_size=32&patch_size=16"
BART = (
    "encoder_layers=1&decoder_layers=1&d_model=32&encoder_attention_heads=2&decoder_attention_heads=2"
    "&encoder_ffn_dim=64&decoder_ffn_dim=64&vocab_size=99"
)
GPT2 = "n_layer=1&n_embd=32&n_head=2&vocab_size=99&bos_token_id=98&eos_token_id=98"
CLIP = "&".join(
    f"{part}.{field}"
    for part in ("text_config", "vision_config")
    for field in ("num_hidden_layers=1", "hidden_size=32", "num_attention_heads=2", "intermediate_size=64")
)
PRISM = (
    f"num_spatial_layers=1&num_temporal_layers=1&{SMALL}&image_size=32&tubelet_size=[1,16,16]&num_frames=4"
)
SWIN = "embed_dim=16&depths=[1,1]&num_heads=[1,2]&image_size=32&patch_size=4&window_size=4"
WHISPER = f"{BART}&pad_token_id=0&bos_token_id=1&eos_token_id=2&decoder_start_token_id=3"
WAV2VEC2 = (
    f"{TEXT}&conv_dim=[16,16]&conv_kernel=[10,3]&conv_stride=[5,2]&num_feat_extract_layers=2"
    "&num_conv_pos_embeddings=4&num_conv_pos_embedding_groups=2&feat_extract_norm=layer"
)

SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    f"transformers:bert?{TEXT}": {"input_ids": (2, 7)},
    f"transformers:BertForMultipleChoice?{TEXT}": {"input_ids": (2, 2, 7)},
    f"transformers:RobertaForTokenClassification?{TEXT}": {"input_ids": (2, 7)},
    f"transformers:GPT2LMHeadModel?{GPT2}": {"input_ids": (2, 7)},
    f"transformers:GPT2ForSequenceClassification?{GPT2}": {"input_ids": (2, 7)},
    f"transformers:GPT2DoubleHeadsModel?{GPT2}": {"input_ids": (2, 2, 7)},
    "transformers:xlnet?n_layer=1&d_model=32&n_head=2&d_inner=64&vocab_size=99": {"input_ids": (2, 7)},
    "transformers:XLMWithLMHeadModel?n_layers=1&emb_dim=32&n_heads=2&n_words=99": {"input_ids": (2, 7)},
    "transformers:flaubert?n_layers=1&emb_dim=32&n_heads=2": {"input_ids": (2, 7)},
    "transformers:t5?num_layers=1&d_model=32&d_ff=64&num_heads=2&vocab_size=99": {
        "input_ids": (2, 7),
        "decoder_input_ids": (2, 7),
    },
    f"transformers:BartForSequenceClassification?{BART}": {"input_ids": (2, 7), "decoder_input_ids": (2, 7)},
    f"transformers:layoutlm?{TEXT}": {"input_ids": (2, 7), "bbox": (2, 7, 4)},
    f"transformers:clip?{CLIP}": {"input_ids": (2, 7), "pixel_values": (2, 3, 224, 224)},
    f"transformers:WhisperForConditionalGeneration?{WHISPER}&max_source_positions=20": {
        "input_features": (2, 80, 40),
        "decoder_input_ids": (2, 7),
    },
    f"transformers:lxmert?l_layers=1&x_layers=1&r_layers=1&{SMALL}&vocab_size=99": {
        "input_ids": (2, 7),
        "visual_feats": (2, 36, 2048),
        "visual_pos": (2, 36, 4),
    },
    # two convolutions: 7 frames need (7 - 1) * 2 + 3 = 15 steps, and these (15 - 1) * 5 + 10 = 80 samples
    f"transformers:Wav2Vec2ForCTC?{WAV2VEC2}": {"input_values": (2, 80)},
}
MUSIC = "num_hidden_layers=1&hidden_size=32&num_attention_heads=2&ffn_dim=64&vocab_size=99"
SOUNDS: dict[str, dict[str, tuple[int, ...]]] = {
    # as wide as the spectrogram, not as the states of the encoder
    "transformers:CohereAsrModel?num_hidden_layers=1&encoder_config.num_hidden_layers=1": {
        "input_features": (2, 128, 128),
        "decoder_input_ids": (2, 128),
    },
    "transformers:AudioFlamingo3Encoder?encoder_layers=1&d_model=32&encoder_attention_heads=2"
    "&max_source_positions=20": {
        "input_features": (2, 128, 40),
        "input_features_mask": (2, 40),
    },
    # 7 frames of 80 bins are read as one
    "transformers:FunAsrNanoEncoder?num_hidden_layers=1": {
        "input_features": (2, 128, 560),
        "input_features_mask": (2, 128),
    },
    "transformers:SpeechT5HifiGan?upsample_initial_channel=32": {"spectrogram": (2, 128, 80)},
    # a row for each of 4 codebooks
    f"transformers:MusicgenForCausalLM?{MUSIC}": {"input_ids": (8, 128)},
    f"transformers:MusicgenMelodyModel?{MUSIC}": {"input_ids": (8, 128)},
    "transformers:dac": {"input_values": (2, 1, 16000)},
    "transformers:xcodec?semantic_model_config.num_hidden_layers=1": {"input_values": (2, 1, 16000)},
    # a frame of features for each 2 * 2 * 4 * 4 * 5 = 320 samples
    "transformers:xcodec2?num_hidden_layers=1&semantic_model_config.num_hidden_layers=1": {
        "input_values": (2, 1, 16000),
        "input_features": (2, 50, 160),
    },
}
IMAGES: dict[str, dict[str, tuple[int, ...]]] = {
    f"transformers:ViTForImageClassification?{IMAGE}&num_labels=10": {"pixel_values": (2, 3, 32, 32)},
    f"transformers:videomae?{IMAGE}&num_frames=4": {"pixel_values": (2, 4, 3, 32, 32)},
    # 4 / 2 tubelets of 2 x 2 patches
    f"transformers:VideoMAEForPreTraining?{IMAGE}&num_frames=4&decoder_num_hidden_layers=1": {
        "pixel_values": (2, 4, 3, 32, 32),
        "bool_masked_pos": (2, 8),
    },
    f"transformers:timesformer?{IMAGE}&num_frames=4": {"pixel_values": (2, 4, 3, 32, 32)},
    f"transformers:vivit?{IMAGE.replace('&patch_size=16', '')}&num_frames=4": {
        "pixel_values": (2, 4, 3, 32, 32)
    },
    f"transformers:VideoPrismVisionModel?{PRISM}": {"pixel_values_videos": (2, 4, 3, 32, 32)},
    f"transformers:XCLIPVisionModel?{IMAGE}&num_frames=4&mit_num_hidden_layers=1": {
        "pixel_values": (8, 3, 32, 32)
    },
    # a tower of a model of videos, one frame at a time
    f"transformers:InstructBlipVideoVisionModel?{IMAGE}": {"pixel_values": (2, 3, 32, 32)},
    # keypoints of two images are matched
    "transformers:EfficientLoFTRModel?hidden_size=32&stage_num_blocks=[1,1,1,1]&out_features=[8,16,16,32]": {
        "pixel_values": (2, 2, 3, 224, 224)
    },
    f"transformers:swin?{SWIN}": {"pixel_values": (2, 3, 32, 32)},
}


def run(model: str, request: InputRequest) -> dict[str, tuple[int, ...]]:
    source = resolve(model)
    module = source.build("cpu")
    inputs = source.inputs(module, request, "cpu")
    with torch.inference_mode():
        module(*inputs.args, **inputs.kwargs)
    return {name: tuple(value.shape) for name, value in inputs.kwargs.items()}


@pytest.mark.parametrize("model", SHAPES, ids=lambda model: model.partition("?")[0])
def test_every_text_and_audio_model_runs_on_its_inputs(model: str) -> None:
    assert run(model, InputRequest(batch_size=2, seq_len=7)) == SHAPES[model]


@pytest.mark.parametrize("model", IMAGES, ids=lambda model: model.partition("?")[0])
def test_every_image_model_runs_on_its_inputs(model: str) -> None:
    assert run(model, InputRequest(batch_size=2)) == IMAGES[model]


@pytest.mark.parametrize("model", SOUNDS, ids=lambda model: model.partition("?")[0])
def test_every_model_of_sounds_is_traced_on_its_inputs(model: str) -> None:
    source = resolve(model)
    module = source.build()
    inputs = source.inputs(module, InputRequest(batch_size=2), "meta")
    assert {name: tuple(tensor.shape) for name, tensor in inputs.kwargs.items()} == SOUNDS[model]
    assert trace(module, inputs.args, inputs.kwargs).layers


def test_a_model_without_a_forward_pass_is_answered_with_its_parts() -> None:
    small = "&".join(
        part(f"{which}_config", "num_layers=1&hidden_size=32&num_heads=2")
        for which in ("semantic", "coarse_acoustics")
    )
    source = resolve(f"transformers:BarkModel?{small}")
    with pytest.raises(
        ModelError, match="BarkModel has no forward pass itself; .* BarkSemanticModel, BarkCoarse"
    ):
        source.inputs(source.build())


def test_a_pair_of_encoder_and_decoder_reads_what_its_encoder_does() -> None:
    from transformers import BertConfig, SpeechEncoderDecoderConfig, Wav2Vec2Config

    text = {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
    sound = Wav2Vec2Config(**text, conv_dim=[16], conv_kernel=[10], conv_stride=[5])
    source = resolve(SpeechEncoderDecoderConfig.from_encoder_decoder_configs(sound, BertConfig(**text)))
    kwargs = source.inputs(source.build(), InputRequest(batch_size=2), "meta").kwargs
    shapes = {name: tuple(tensor.shape) for name, tensor in kwargs.items()}
    assert shapes == {"input_values": (2, 16000), "decoder_input_ids": (2, 128)}


def test_a_time_series_comes_whole_and_with_how_often_it_is_sampled() -> None:
    sizes = f"num_hidden_layers=1&{SMALL}&head_dim=16&context_length=64"
    shapes = {"past_values": (2, 64), "past_values_padding": (2, 64), "freq": (2, 1)}
    assert run(f"transformers:TimesFmModel?{sizes}", InputRequest(batch_size=2)) == shapes


def test_a_decision_follows_states_actions_and_rewards() -> None:
    shapes = {"states": (2, 7, 17), "actions": (2, 7, 4), "rewards": (2, 7, 1), "returns_to_go": (2, 7, 1)}
    model = "transformers:DecisionTransformerModel?n_layer=1&hidden_size=32"
    assert run(model, InputRequest(batch_size=2, seq_len=7)) == {**shapes, "timesteps": (2, 7)}


def test_an_image_that_is_read_at_several_scales_is_a_patch_at_the_smallest() -> None:
    source = resolve("transformers:depth_pro")
    shape = source.inputs(source.build(), InputRequest(), "meta").kwargs["pixel_values"].shape
    assert shape == (1, 3, 384 * 4, 384 * 4)


def test_a_segmentation_is_told_its_task_in_words() -> None:
    backbone = "embed_dim=16&depths=[1,1,1,1]&num_heads=[1,1,1,1]&window_size=4"
    source = resolve(f"transformers:OneFormerModel?task_seq_len=9&{part('backbone_config', backbone)}")
    kwargs = source.inputs(source.build(), InputRequest(batch_size=2), "meta").kwargs
    assert kwargs["task_inputs"].shape == (2, 9)


def test_a_model_that_reads_text_beside_video_gets_both() -> None:
    source = resolve("transformers:tvp?num_hidden_layers=1&max_img_size=256&num_frames=2")
    kwargs = source.inputs(source.build(), InputRequest(seq_len=7), "meta").kwargs
    assert {name: tuple(tensor.shape) for name, tensor in kwargs.items()} == {
        "input_ids": (1, 7),
        "pixel_values": (1, 2, 3, 256, 256),
    }


def test_a_model_that_puts_sounds_in_place_of_tokens_reads_its_text_alone() -> None:
    audio = "audio_config.encoder_layers=1&audio_config.d_model=32&audio_config.encoder_attention_heads=2"
    text = part("text_config", f"{TEXT}&num_key_value_heads=2")
    source = resolve(f"transformers:Qwen2AudioForConditionalGeneration?{audio}&{text}")
    module = source.build()
    inputs = source.inputs(module, InputRequest(seq_len=7), "meta")
    assert {name: tuple(tensor.shape) for name, tensor in inputs.kwargs.items()} == {"input_ids": (1, 7)}
    assert "audio_tower" in trace(module, inputs.args, inputs.kwargs).idle


SIGLIP2 = f"vision_config.num_patches=4&{part('vision_config', IMAGE.replace('&image_size=32', ''))}"
QUERIES = part("qformer_config", f"{TEXT}&encoder_hidden_size=32")
OPT = part("text_config", "num_hidden_layers=1&hidden_size=32&num_attention_heads=2&ffn_dim=64&vocab_size=99")
SPEECH = (
    "encoder_layers=1&decoder_layers=1&hidden_size=32&encoder_attention_heads=2&decoder_attention_heads=2"
    "&encoder_ffn_dim=64&decoder_ffn_dim=64"
)
READER = part("text_config", "layers=1&embed_dim=32&attention_heads=2&ffn_dim=64&vocab_size=99")
KOSMOS = f"latent_query_num=4&{READER}&{part('vision_config', IMAGE)}"
SEVERAL: dict[str, dict[str, tuple[int, ...]]] = {
    # 2 x 2 patches of 3 * 16 * 16 numbers
    f"transformers:siglip2?{SIGLIP2}&{part('text_config', TEXT)}&text_config.projection_size=32": {
        "input_ids": (2, 7),
        "pixel_values": (2, 4, 768),
        "pixel_attention_mask": (2, 4),
        "spatial_shapes": (2, 2),
    },
    "transformers:udop?num_layers=1&num_decoder_layers=1&d_model=32&num_heads=2&d_kv=16&d_ff=64&vocab_size=99"
    "&image_size=32": {
        "input_ids": (2, 7),
        "decoder_input_ids": (2, 7),
        "bbox": (2, 7, 4),
        "pixel_values": (2, 3, 32, 32),
    },
    f"transformers:blip-2?num_query_tokens=4&{part('vision_config', IMAGE)}&{QUERIES}&{OPT}": {
        "pixel_values": (2, 3, 32, 32),
        "input_ids": (2, 7),
    },
    f"transformers:instructblip?num_query_tokens=4&{part('vision_config', IMAGE)}&{QUERIES}&{OPT}": {
        "pixel_values": (2, 3, 32, 32),
        "qformer_input_ids": (2, 7),
        "input_ids": (2, 7),
    },
    f"transformers:kosmos-2?{KOSMOS}": {
        "pixel_values": (2, 3, 32, 32),
        "input_ids": (2, 7),
        "image_embeds_position_mask": (2, 7),
    },
    f"transformers:speecht5?{SPEECH}": {"input_values": (2, 7, 32), "decoder_input_values": (2, 128, 32)},
}


@pytest.mark.parametrize("model", SEVERAL, ids=lambda model: model.partition("?")[0])
def test_every_half_of_a_model_that_reads_several_things_is_traced(model: str) -> None:
    source = resolve(model)
    module = source.build()
    inputs = source.inputs(module, InputRequest(batch_size=2, seq_len=7), "meta")
    assert {name: tuple(tensor.shape) for name, tensor in inputs.kwargs.items()} == SEVERAL[model]
    idle = trace(module, inputs.args, inputs.kwargs).idle
    assert not any(half in idle for half in ("vision", "text", "qformer", "encoder.embed"))


@pytest.mark.parametrize(
    ("name", "heads", "pixels"),
    [
        (
            "Qwen2_5_VisionTransformerPretrainedModel",
            "num_heads=2&fullatt_block_indexes=[0]",
            "hidden_states",
        ),
        ("Qwen3VLVisionModel", "num_heads=2&deepstack_visual_indexes=[0]", "hidden_states"),
        ("VideoLlama3VisionModel", "num_attention_heads=2&num_hidden_layers=1", "pixel_values"),
    ],
)
def test_a_tower_that_reads_the_patches_of_all_images_in_a_row_gets_their_grids(
    name: str, heads: str, pixels: str
) -> None:
    depth = "depth=1&out_hidden_size=32&" * (pixels == "hidden_states")
    source = resolve(f"transformers:{name}?{depth}hidden_size=32&intermediate_size=64&patch_size=56&{heads}")
    module = source.build()
    kwargs = source.inputs(module, InputRequest(batch_size=2), "meta").kwargs
    grid = with_values(kwargs["grid_thw"])  # 4 patches a side of 56 pixels each
    assert grid.tolist() == [[1, 4, 4]] * 2
    frames = getattr(module.config, "temporal_patch_size", 1)
    assert kwargs[pixels].shape == (2 * 4 * 4, 3 * frames * 56**2)
    assert trace(module, (), kwargs).idle == ""


def test_a_model_is_built_on_meta_in_eval_mode_and_its_inputs_too() -> None:
    source = resolve(f"transformers:bert?{TEXT}")
    model = source.build()
    inputs = source.inputs(model, InputRequest(), "meta")
    assert not model.training
    assert all(parameter.is_meta for parameter in model.parameters())
    assert inputs.kwargs["input_ids"].is_meta


def test_weights_on_the_cpu_are_finite_seeded_and_in_the_dtype_asked_for() -> None:
    source = resolve(f"transformers:bert?{TEXT}")
    first, second = source.build("cpu", torch.bfloat16), source.build("cpu", torch.bfloat16)
    for left, right in zip(first.parameters(), second.parameters(), strict=True):
        assert left.dtype == torch.bfloat16
        assert torch.isfinite(left).all()
        assert torch.equal(left, right)
    assert any(parameter.std() > 0 for parameter in first.parameters() if parameter.dim() > 1)


def test_building_leaves_the_random_state_of_the_caller_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    resolve(f"transformers:bert?{TEXT}").build("cpu")
    assert torch.equal(torch.rand(1), expected)


def test_token_ids_cover_the_vocabulary_without_the_special_ones() -> None:
    source = resolve(f"transformers:bert?{TEXT}")
    ids = source.inputs(source.build(), InputRequest(batch_size=8, seq_len=256)).kwargs["input_ids"]
    assert set(ids.flatten().tolist()) == set(range(1, 99))  # 0 is padding


def test_the_default_text_length_is_clipped_to_the_positions() -> None:
    source = resolve(f"transformers:bert?{TEXT}&max_position_embeddings=40")
    assert source.inputs(source.build()).kwargs["input_ids"].shape == (1, 40)
    source = resolve(f"transformers:bert?{TEXT}")
    assert source.inputs(source.build()).kwargs["input_ids"].shape == (1, 128)


def test_floating_inputs_take_the_dtype_asked_for() -> None:
    source = resolve(f"transformers:vit?{IMAGE}")
    inputs = source.inputs(source.build("meta", torch.float16), InputRequest(dtype=torch.float16))
    assert inputs.kwargs["pixel_values"].dtype == torch.float16


# ---- folders and configuration objects ----


def configuration(folder: Path, **values: object) -> Path:
    (folder / "config.json").write_text(json.dumps(values))
    return folder


def test_a_folder_names_its_class_and_takes_overrides(tmp_path: Path) -> None:
    values = dict(part.split("=") for part in TEXT.split("&"))
    folder = configuration(
        tmp_path,
        model_type="bert",
        architectures=["BertForMaskedLM"],
        **{k: int(v) for k, v in values.items()},
    )
    assert type(resolve(folder).build()).__name__ == "BertForMaskedLM"
    model = resolve(f"{folder / 'config.json'}?num_hidden_layers=3").build()
    assert len(model.bert.encoder.layer) == 3  # type: ignore[union-attr]  # BERT's own attributes


def test_one_entry_per_layer_is_cut_with_the_layers(tmp_path: Path) -> None:
    folder = configuration(
        tmp_path,
        model_type="qwen3",
        num_hidden_layers=4,
        hidden_size=32,
        intermediate_size=64,
        num_attention_heads=2,
        num_key_value_heads=1,
        layer_types=["full_attention"] * 4,
    )
    model = resolve(f"{folder}?num_hidden_layers=2").build()
    assert model.config.layer_types == ["full_attention"] * 2  # type: ignore[union-attr]  # of transformers


def test_a_configuration_object_is_a_model() -> None:
    from transformers import BertConfig

    config = BertConfig(num_hidden_layers=1, hidden_size=32, num_attention_heads=2, intermediate_size=64)
    before = config.to_dict()
    assert type(resolve(config).build()).__name__ == "BertModel"
    assert config.to_dict() == before


def test_quantized_weights_are_not_run_until_an_override_takes_them_for_plain_ones(tmp_path: Path) -> None:
    from transformers import AwqConfig, BertConfig

    sizes: dict[str, Any] = {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2}
    folder = configuration(tmp_path, model_type="bert", quantization_config={"quant_method": "fp8"}, **sizes)
    source = resolve(folder)
    built: Any = source.build()
    assert built.config.model_type == "bert"
    assert source.weights is not None and source.weights.name == "fp8"
    with pytest.raises(ModelError, match=r"are quantized \(fp8\).*MODEL\?quantization_config=null"):
        source.call(InputRequest())
    assert type(resolve(f"{folder}?quantization_config=null").build()).__name__ == "BertModel"
    assert resolve(f"{folder}?quantization_config=null").weights is None
    own = resolve(BertConfig(**sizes, **{"quantization_config": AwqConfig()})).weights
    assert own is not None and own.name == "awq"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        pytest.param("[" * 100_000, "is not JSON", id="nested"),
        ("[]", "has no model_type"),
        ('{"model_type": "bertt"}', "unknown transformers model type 'bertt': did you mean .*bert"),
        ('{"model_type": "bert", "architectures": ["BertForMaskedML"]}', "did you mean .*BertForMaskedLM"),
        ('{"model_type": "bert", "hidden_size": "x"}', "is not accepted"),
    ],
)
def test_a_bad_configuration_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelError, match=message):
        resolve(tmp_path)


def test_a_folder_without_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"holds no config\.json"):
        resolve(tmp_path)


# ---- names ----


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("bret", "'bret' is not a folder and names no source; MODEL is"),
        ("bert", "model 'bert' may be bert-base-uncased, bert-large-uncased, "),
        ("", "no model is given; MODEL is"),
        ("transformers:brt", "unknown transformers model type or class 'brt': did you mean .*bert"),
        ("transformers:BertForMaskedML", "did you mean .*BertForMaskedLM"),
        ("transformers:bert?hidden_sise=3", "unknown field of BertConfig.*did you mean hidden_size"),
        (
            "transformers:clip?text_config.hidden_sise=3",
            "unknown field of CLIPTextConfig.*did you mean .*hidden_size",
        ),
        ("transformers:bert?hidden_size.x=3", "holds no configuration"),
        ("transformers:bert?hidden_size=wide", "are not accepted"),
        ("transformers:bert?hidden_size", "is not field=value"),
        ("zoo:alexnett", "unknown zoo network 'alexnett': did you mean alexnet"),
        ("no_such_module:network", "there is no module 'no_such_module'"),
        ("no_such_file.py:network", r"there is no file no_such_file\.py"),
        ("no_such_file.pt2", r"there is no file no_such_file\.pt2"),
    ],
)
def test_a_bad_name_is_refused(model: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        resolve(model)


def test_a_composed_configuration_without_default_is_refused() -> None:
    with pytest.raises(ModelError, match="MusicgenConfig is made of other configurations and has no default"):
        resolve("transformers:musicgen").build()


@pytest.mark.parametrize("package", ["torchvision", "timm"])
def test_a_package_that_is_not_installed_is_named(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ModelError, match=rf"{package} is not installed; pip install timm torchvision"):
        resolve(f"{package}:resnet50")


def test_torchvision_models_take_its_image_size(monkeypatch: pytest.MonkeyPatch) -> None:
    def tiny(*, weights: None = None) -> nn.Module:
        return nn.Conv2d(3, 2, 1)

    models = types.SimpleNamespace(
        list_models=lambda: ["tiny"],
        get_model_builder=lambda name: tiny,
        get_model=lambda name, **given: tiny(**given),
    )
    monkeypatch.setitem(sys.modules, "torchvision", types.SimpleNamespace(models=models))
    source = resolve("torchvision:tiny")
    assert source.inputs(source.build(), InputRequest(2)).args[0].shape == (2, 3, 224, 224)
    with pytest.raises(ModelError, match="unknown torchvision model 'tinny': did you mean tiny"):
        resolve("torchvision:tinny")


def test_a_network_of_transformers_in_eight_bits_is_refused_with_what_to_ask_instead() -> None:
    message = r"cannot be built in float8_e4m3fn, .*16 bits or more; choose bfloat16, and ask `score`"
    with pytest.raises(ModelError, match=message):
        resolve(f"transformers:bert?{TEXT}").build("meta", torch.float8_e4m3fn)


def test_a_configuration_that_cannot_be_built_says_why() -> None:
    with pytest.raises(ModelError, match="cannot be built: ValueError"):
        resolve("transformers:bert?hidden_size=33&num_attention_heads=2").build()


@pytest.mark.parametrize("value", ["[" * 100_000, "9" * 5000], ids=["lists", "digits"])
def test_an_override_that_json_cannot_hold_is_a_text(value: str) -> None:
    with pytest.raises(ModelError, match=r"^classes '(\[{39}|9{39}) of .*: must be a whole number"):
        resolve(f"zoo:sensor_net?classes={value}").build()


def test_a_zoo_network_runs_and_takes_keywords() -> None:
    source = resolve("zoo:sensor_net?classes=5")
    model = source.build("cpu")
    inputs = source.inputs(model, InputRequest(batch_size=3))
    assert model(*inputs.args).shape == (3, 5)
    with pytest.raises(ModelError, match=r"unexpected keyword argument 'width'.*it takes .*classes"):
        resolve("zoo:sensor_net?width=5").build()


# ---- functions ----

FILE = """
import torch
from torch import nn
from beside import WIDTH

def network(width: int = WIDTH) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 5))

class Network(nn.Linear):
    def __init__(self):
        super().__init__(4, 5)

def pair():
    return nn.Linear(4, 5), torch.zeros(3, 4)

def reader():
    return nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 2))

class Waves(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, dtype=torch.complex64))
        self.last = nn.Linear(4, 4)

    def forward(self, x):
        return self.last((torch.fft.fft(x) * self.weight).real)

built = nn.Linear(4, 5)

def data_dependent():
    return nn.Linear(4, int(torch.ones(1).sum().item()))

def nothing():
    return None

def broken():
    raise ValueError("out of luck")
"""
EXAMPLE_INPUTS = """
def example_inputs(batch_size, seq_len=3):
    return {"input": torch.empty(batch_size, seq_len, 4)}
"""


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "beside.py").write_text("WIDTH = 4\n")
    path = tmp_path / "net.py"
    path.write_text(FILE)
    yield path
    sys.modules.pop("beside", None)


def test_a_function_in_a_file_is_called_with_the_overrides(file: Path) -> None:
    source = resolve(f"{file}:network?width=6")
    model = source.build("cpu")
    inputs = source.inputs(model, InputRequest(batch_size=2, input_shape=(6,)))
    assert model(*inputs.args).shape == (2, 5)
    assert inputs.args[0].std() > 0


def test_a_module_class_is_a_function_too(file: Path) -> None:
    assert isinstance(resolve(f"{file}:Network").build(), nn.Linear)


def test_complex_weights_keep_their_type(file: Path) -> None:
    source = resolve(f"{file}:Waves")
    model = source.build(dtype=torch.float64)
    assert {str(tensor.dtype) for tensor in model.parameters()} == {"torch.complex64", "torch.float64"}
    model = source.build("cpu")
    assert model(*source.inputs(model, InputRequest(input_shape=(4,))).args).shape == (1, 4)


def test_example_inputs_beside_a_function_are_used_and_drawn_afresh(file: Path) -> None:
    file.write_text(FILE + EXAMPLE_INPUTS)
    source = resolve(f"{file}:network")
    inputs = source.inputs(source.build(), InputRequest(batch_size=2, seq_len=5))
    assert inputs.kwargs["input"].shape == (2, 5, 4)
    assert 0.5 < inputs.kwargs["input"].std() < 2


def test_a_pair_brings_its_inputs_which_take_the_batch_size(file: Path) -> None:
    source = resolve(f"{file}:pair")
    assert source.inputs(source.build(), InputRequest(batch_size=7)).args[0].shape == (7, 4)


def test_a_module_with_an_example_of_its_own_is_called_with_it(file: Path) -> None:
    file.write_text(
        FILE
        + """
class Module(Network):
    def __init__(self):
        super().__init__()
        self.example_input_array = {"input": torch.empty(3, 4)}
"""
    )
    source = resolve(f"{file}:Module")
    inputs = source.inputs(source.build("cpu"), InputRequest(batch_size=7))
    assert {name: tensor.shape for name, tensor in inputs.kwargs.items()} == {"input": (7, 4)}
    assert inputs.kwargs["input"].std() > 0
    given = source.inputs(source.build("cpu"), InputRequest(batch_size=2, input_shape=(4,)))
    assert given.args[0].shape == (2, 4)


def test_a_shape_for_a_model_that_starts_with_an_embedding_means_token_ids(file: Path) -> None:
    source = resolve(f"{file}:reader")
    model = source.build("cpu")
    inputs = source.inputs(model, InputRequest(batch_size=2, seq_len=9))
    assert inputs.args[0].dtype == torch.int64
    assert model(*inputs.args).shape == (2, 9, 2)


def test_inputs_without_values_promise_those_that_are_drawn_on_the_cpu() -> None:
    source = resolve(f"transformers:layoutlm?{TEXT}")
    model, request = source.build(), InputRequest(batch_size=2, seq_len=7)
    real, promised = (source.inputs(model, request, device).kwargs for device in ("cpu", "meta"))
    assert all(tensor.is_meta for tensor in promised.values())
    assert real.keys() == promised.keys()
    assert all(with_values(promised[name]).equal(tensor) for name, tensor in real.items())


def test_an_example_that_needs_values_is_made_on_the_cpu(file: Path) -> None:
    sized = "torch.empty(batch_size, int(torch.ones(3).sum()), 4)"
    file.write_text(FILE + EXAMPLE_INPUTS.replace("torch.empty(batch_size, seq_len, 4)", sized))
    source = resolve(f"{file}:network")
    assert source.inputs(source.build(), InputRequest(batch_size=2), "meta").kwargs["input"].shape == (
        2,
        3,
        4,
    )


@pytest.mark.parametrize(
    "phase", [Phase(), Phase.prefill(8), Phase.decode(context=8)], ids=lambda phase: phase.name
)
def test_a_batch_that_no_memory_holds_has_shapes(phase: Phase) -> None:
    one = pass_of(resolve(f"transformers:GPT2LMHeadModel?{GPT2}"), InputRequest(2**40), phase)
    layers: Any = trace(one.module, one.inputs.args, one.inputs.kwargs).layers
    assert {layer.batch for layer in layers if layer.kind == "attention"} == {2**40}


def test_inputs_that_no_memory_holds_are_refused_where_their_values_are_asked_for() -> None:
    source = resolve("zoo:sensor_net")
    with pytest.raises(
        ModelError, match=rf"cannot be made for batch size {2**50}: RuntimeError: .*; choose other"
    ):
        source.inputs(source.build(), InputRequest(2**50))
    model = resolve(nn.Sequential(Choosing()))
    inputs = model.inputs(model.build(), InputRequest(2**50, input_shape=(4,)), "meta")
    with pytest.raises(
        ModelError, match=rf"inputs of Sequential cannot be made for batch size {2**50}: RuntimeError"
    ):
        trace(model.build(), inputs.args, inputs.kwargs)


class Choosing(nn.Linear):
    """Decides by what it reads."""

    def __init__(self) -> None:
        super().__init__(4, 4)

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) if input.sum() != 1 else input


def test_a_constructor_that_needs_values_is_built_on_the_cpu(file: Path) -> None:
    assert next(resolve(f"{file}:data_dependent").build("meta").parameters()).device.type == "cpu"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "gives a NoneType; it has to return an nn.Module"),
        ("broken", "cannot be built: ValueError: out of luck"),
        ("built", "built is a Linear that has been built; give a function that returns it"),
        ("network?wdth=3", r"unexpected keyword argument 'wdth'.*it takes width"),
    ],
)
def test_a_function_that_gives_no_model_is_refused(file: Path, name: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        resolve(f"{file}:{name}").build()


def test_what_a_foreign_error_announces_with_a_colon_is_said_too(file: Path) -> None:
    said = (
        "No natten here. It comes\nfrom its pages, or with pip:\n"
        "`pip install natten`. Start again after it.\nBye."
    )
    file.write_text(f"def network():\n    raise ImportError({said!r})")
    with pytest.raises(
        ModelError, match=r"cannot be built: ImportError: No natten .* with pip: `pip .* after it\.$"
    ):
        resolve(f"{file}:network").build()


def test_a_missing_function_is_answered_with_the_nearest(file: Path) -> None:
    with pytest.raises(ModelError, match=r"unknown function in .*net\.py 'netwrk': did you mean .*network"):
        resolve(f"{file}:netwrk")


def test_a_file_that_cannot_be_imported_says_why(file: Path) -> None:
    file.write_text("import no_such_package")
    with pytest.raises(ModelError, match=r"net\.py cannot be imported: ModuleNotFoundError"):
        resolve(f"{file}:network")


def test_a_script_that_ends_the_program_is_refused_as_any_that_fails(file: Path) -> None:
    file.write_text("raise SystemExit(3)  # as argparse does, of arguments that are not its own")
    with pytest.raises(ModelError, match=r"net\.py cannot be imported: SystemExit: 3"):
        resolve(f"{file}:network")
    file.write_text("def network():\n    raise SystemExit(7)")
    with pytest.raises(ModelError, match=r"net\.py:network cannot be built: SystemExit: 7"):
        resolve(f"{file}:network").build()


def test_a_model_without_known_inputs_asks_for_a_shape(file: Path) -> None:
    source = resolve(f"{file}:network")
    with pytest.raises(ModelError, match="give --input-shape"):
        source.inputs(source.build())


def test_a_function_of_an_installed_module_is_found() -> None:
    source = resolve("torch.nn:Linear?in_features=4&out_features=5")
    assert source.build("cpu")(torch.ones(1, 4)).shape == (1, 5)


# ---- modules in hand and exported programs ----


def test_a_module_in_hand_is_copied_and_left_as_it_is() -> None:
    module = nn.Sequential(nn.Linear(4, 5), nn.Dropout())
    built = resolve(module).build("meta", torch.float16)
    assert next(built.parameters()).is_meta
    assert next(built.parameters()).dtype == torch.float16
    assert not built.training
    assert module.training
    assert module[0].weight.device.type == "cpu"


def test_tied_weights_stay_tied_in_the_copy() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    module[1].weight = module[0].weight
    built = resolve(module).build("meta")
    assert isinstance(built, nn.Sequential)
    assert built[0].weight is built[1].weight


def test_a_length_that_a_model_keeps_in_a_buffer_is_its_own() -> None:
    source = resolve("transformers:encodec?num_filters=4&hidden_size=16&codebook_dim=16&num_lstm_layers=1")
    model = source.build("meta")
    inputs = source.inputs(model, InputRequest(input_shape=(1, 2000)))
    assert trace(model, inputs.args, inputs.kwargs).method == "cpu"


def test_functions_that_know_a_module_know_its_copy() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(5))
            self.called = 0
            last, chosen = self.layers[1].forward, list(self.layers[2:3])
            surroundings: dict[str, Any] = {"layer": self.layers[4]}
            self.layers[1].forward = lambda x: last(x) * 2
            self.layers[0].register_forward_hook(lambda layer, args, output: chosen[0](output))
            exec("def named(x): return layer(x)", surroundings)  # as in a script, by a global name
            self.steps = [self.count, lambda x, layer=self.layers[3]: layer(x), surroundings["named"]]

        @property
        def count(self) -> Callable[[Tensor], Tensor]:
            def counted(x: Tensor) -> Tensor:
                self.called += 1
                return self.layers[1](self.layers[0](x))

            return counted

        def forward(self, x: Tensor) -> Tensor:
            for step in self.steps:
                x = step(x)
            return x

    module = Net()
    expected = module(torch.ones(1, 4)).double()
    copied: Any = resolve(module).build("cpu", torch.float64)  # the original's layers refuse float64
    assert torch.allclose(copied(torch.ones(1, 4, dtype=torch.float64)), expected)
    assert (module.called, copied.called) == (1, 2)


def test_a_function_that_calls_itself_is_copied() -> None:
    def down(x: Tensor, depth: int = 2) -> Tensor:
        return layer(x) if depth == 0 else down(x, depth - 1)

    layer: Any = nn.Linear(4, 4)
    layer.down = down
    copied: Any = resolve(layer).build("meta")
    assert copied.down(torch.ones(4, device="meta")).is_meta


def test_what_does_not_lead_to_a_module_is_its_copys_as_it_is() -> None:
    module: Any = nn.Linear(4, 4)
    module.act, module.table = torch.nn.functional.relu, {torch.nn.functional.relu: 1}
    module.itself = {}
    module.itself["again"] = module.itself
    module.steps = [lambda x: module(x)]
    module.alias = module.steps
    copied: Any = resolve(module).build("meta")
    assert copied.act is module.act and copied.table[copied.act] == 1
    assert copied.itself["again"] is copied.itself
    assert copied.steps is copied.alias and copied.steps is not module.steps
    assert copied.steps[0](torch.ones(1, 4, device="meta")).is_meta


def test_making_inputs_leaves_random_numbers_as_they_were(tmp_path: Path) -> None:
    (tmp_path / "drawing.py").write_text(
        "import random, torch\nfrom torch import nn\ndef net(): return nn.Linear(4, 4)\n"
        "def example_inputs(batch_size):\n    random.seed(1)\n    torch.manual_seed(1)\n"
        "    return torch.rand(batch_size, 4)\n"
    )
    source = resolve(f"{tmp_path / 'drawing.py'}:net")
    model, before = source.build("meta"), (random.getstate(), torch.get_rng_state())
    source.inputs(model, device="meta")
    source.inputs(model)
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])


def test_what_a_graph_has_computed_is_copied_without_it() -> None:
    module: Any = prune.random_unstructured(nn.Linear(4, 5), "weight", 0.5)
    expected = module(torch.ones(1, 4))
    module.seen = [expected]
    copied = resolve(module).build("cpu", torch.float64)
    assert torch.allclose(copied(torch.ones(1, 4, dtype=torch.float64)), expected.double())
    on_meta: Any = resolve(module).build("meta")
    assert on_meta.weight.is_meta
    assert module.seen[0] is expected
    assert module.weight.requires_grad


def test_a_module_without_values_cannot_go_to_the_cpu() -> None:
    with pytest.raises(ModelError, match="are on the meta device and have no values for cpu"):
        resolve(nn.Linear(4, 5, device="meta")).build("cpu")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            "zoo:resnet18?classes=0",
            "classes 0 of 'zoo:resnet18.classes=0': must be a whole number, 1 or more",
        ),
        ("zoo:resnet18?classes=ten", "classes 'ten' of .*: must be a whole number, 1 or more"),
        ("zoo:resnet18?width=true", "width True of .*: must be a whole number"),
        ("zoo:convmixer?depth=-1", "depth -1 of .*: must be a whole number"),
        ("transformers:bert?intermediate_size=0", "intermediate_size 0 in .*: a size must be 1 or more"),
        (
            "transformers:bert?num_hidden_layers=-1",
            "num_hidden_layers -1 in .*: a number of layers must be 0 or more",
        ),
    ],
)
def test_a_size_below_one_is_refused(model: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        resolve(model).build()


def test_a_size_of_zero_that_a_configuration_has_itself_can_be_given() -> None:
    # DeBERTa embeds no kinds of tokens, which it says by their number, 0
    resolve(f"transformers:deberta?{TEXT}&type_vocab_size=0").build()


def test_something_else_is_no_model() -> None:
    with pytest.raises(ModelError, match="^3 is not a MODEL"):
        resolve(3)  # what is tested


def exported(path: Path, dynamic: bool) -> Path:
    dynamic_shapes = ({0: torch.export.Dim("batch", min=2, max=64)},) if dynamic else None
    program = torch.export.export(nn.Linear(4, 5), (torch.randn(3, 4),), dynamic_shapes=dynamic_shapes)
    torch.export.save(program, path)
    return path


def test_an_exported_program_keeps_a_static_batch(tmp_path: Path) -> None:
    source = resolve(exported(tmp_path / "net.pt2", dynamic=False))
    model = source.build()
    inputs = source.inputs(model, InputRequest(batch_size=3))
    assert model(*inputs.args).shape == (3, 5)
    with pytest.raises(ModelError, match=r"batch size is 8, but .*net\.pt2 is exported for a batch of 3"):
        source.inputs(model, InputRequest(batch_size=8))


def test_an_exported_program_takes_any_dynamic_batch(tmp_path: Path) -> None:
    source = resolve(exported(tmp_path / "net.pt2", dynamic=True))
    model = source.build()
    assert model(*source.inputs(model, InputRequest(batch_size=8)).args).shape == (8, 5)


def test_a_file_that_is_no_exported_program_is_refused_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "net.pt2").write_text("nothing")
    torch.save({"weights": torch.zeros(2)}, tmp_path / "weights.pt2")
    monitored = logging.getLogger("torch.export")
    monitored.addHandler(caplog.handler)  # torch's loggers do not propagate
    for name in ("net.pt2", "weights.pt2"):
        with pytest.raises(ModelError, match=f"{name} is not an exported program of torch .*; write it with"):
            resolve(tmp_path / name)
    monitored.removeHandler(caplog.handler)
    assert not caplog.records


# ---- requests ----


@pytest.mark.parametrize(
    ("model", "request_", "message"),
    [
        (
            f"transformers:bert?{TEXT}",
            InputRequest(batch_size=0),
            "batch_size is 0, but must be a whole number from 1",
        ),
        (
            f"transformers:bert?{TEXT}",
            InputRequest(batch_size=10**21),
            r"batch_size is 10+, but .* to 2\*\*53",
        ),
        (
            f"transformers:bert?{TEXT}",
            InputRequest(seq_len=0),
            "seq_len is 0, but must be a whole number from 1",
        ),
        (
            f"transformers:bert?{TEXT}",
            InputRequest(seq_len=513),
            "seq_len is 513, but BertModel has 512 positions",
        ),
        (f"transformers:gpt2?{GPT2}", InputRequest(seq_len=1025), "has 1024 positions; give at most 1024"),
        (
            f"transformers:roberta?{TEXT}&max_position_embeddings=514",
            InputRequest(seq_len=513),
            "has 512 positions",
        ),
        (f"transformers:bart?{BART}", InputRequest(seq_len=1025), "has 1024 positions"),
        (
            f"transformers:whisper?{WHISPER}",
            InputRequest(seq_len=449),
            "the decoder of WhisperModel has 448 positions",
        ),
        (
            f"transformers:whisper?{WHISPER}",
            InputRequest(input_shape=(80, 100)),
            "always reads 80 mel bins x 3000 frames",
        ),
        (
            f"transformers:bert?{TEXT}",
            InputRequest(input_shape=(3, 8, 8)),
            "reads tokens; give seq_len instead",
        ),
        (
            f"transformers:siglip2_vision_model?num_patches=4&{IMAGE.replace('&image_size=32', '')}",
            InputRequest(input_shape=(3, 32, 32)),
            "input_shape is 3x32x32, but Siglip2VisionModel reads 4 patches of 768 numbers; leave it out",
        ),
        (f"transformers:vit?{IMAGE}", InputRequest(seq_len=4), "reads no tokens; leave seq_len out"),
        (
            f"transformers:vit?{IMAGE}",
            InputRequest(input_shape=(1, 32, 32)),
            "with 3 channels; give for example 3x32x32",
        ),
        (f"transformers:vit?{IMAGE}", InputRequest(input_shape=(32, 32)), "reads channels x height x width"),
        (
            f"transformers:vit?{IMAGE}",
            InputRequest(input_shape=(3, 64, 64)),
            r"override image_size \(MODEL\?image_size=64",
        ),
        (
            f"transformers:vit?{IMAGE}",
            InputRequest(input_shape=(3, 0, 64)),
            "every size must be a whole number from 1",
        ),
        ("zoo:sensor_net", InputRequest(input_shape=()), "every size must be a whole number"),
    ],
    ids=str,
)
def test_a_request_that_does_not_fit_is_refused(model: str, request_: InputRequest, message: str) -> None:
    source = resolve(model)
    with pytest.raises(InputError, match=message):
        source.inputs(source.build(), request_)


def test_a_length_up_to_the_last_roberta_position_runs() -> None:
    model = f"transformers:roberta?{TEXT}&max_position_embeddings=20"
    assert run(model, InputRequest(seq_len=18)) == {"input_ids": (1, 18)}
    with pytest.raises(InputError, match="has 18 positions"):
        run(model, InputRequest(seq_len=19))


def test_boxes_are_ordered() -> None:
    source = resolve(f"transformers:layoutlm?{TEXT}")
    box: Tensor = source.inputs(source.build()).kwargs["bbox"]
    assert (box[..., 0] <= box[..., 2]).all()
    assert (box[..., 1] <= box[..., 3]).all()


HEAVY = """
import torch

MADE = __file__ + ".txt"


class Heavy(torch.nn.Module):
    def __init__(self, fault):
        super().__init__()
        for number in range(50):
            setattr(self, f"part{number}", torch.nn.Linear(500, 500, bias=False))  # 1 MB
            with open(MADE, "a") as made:
                print(getattr(self, f"part{number}").weight.device.type, file=made)
        fault()


def wrong():
    return Heavy(lambda: {}["wonder"])


def of_values():
    return Heavy(lambda: torch.ones(1).item())
"""


def test_a_constructor_that_fails_is_not_run_again_on_real_memory_beyond_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "heavy.py").write_text(HEAVY)
    monkeypatch.setattr("neuralpower.networks.source.MOST_UNASKED_BYTES", 5_000_000)
    wrong = resolve(f"{tmp_path / 'heavy.py'}:wrong")
    with pytest.raises(ModelError, match=r"cannot be built: KeyError: 'wonder'"):
        wrong.build()
    made = (tmp_path / "heavy.py.txt").read_text().split()
    assert (made.count("meta"), made.count("cpu")) == (50, 5)  # of 50 MB
    # one that needs values gets them, and a person who waits is told
    told: list[str] = []
    with heard_by(lambda text, done, total: told.append(text)):
        built = resolve(f"{tmp_path / 'heavy.py'}:of_values").build()
    assert {parameter.device.type for parameter in built.parameters()} == {"cpu"}
    assert any("with values" in text for text in told)


def test_an_unknown_kind_of_rotation_is_refused_at_once(tmp_path: Path) -> None:
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096}
    scaling = {"rope_scaling": {"rope_type": "wonder", "factor": 2.0}}
    (tmp_path / "config.json").write_text(json.dumps({**config, **scaling}))  # 32 layers of 200 M parameters
    with pytest.raises(ModelError, match="wonder"):
        resolve(str(tmp_path)).build()
