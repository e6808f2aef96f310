"""The real networks whose distinct layers `collect-data` measures, and small changes of them.

Widths are those of the published base models (for language models, of their 0.5 to 1.5 billion sizes); the number of
blocks is cut to what covers every distinct layer, since equal blocks are measured once. Large vocabularies are cut
where a head would cost more than all the rest. `train-predictor` is validated on other families: keep these apart.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

from neuralpower.errors import NeuralPowerError
from neuralpower.networks.families import index_ranges, with_overrides
from neuralpower.networks.sources import resolve

SWEPT = 32  # networks of a family that stand for its sweep
ATTEMPTS = 8  # changed configurations to try before a network is left as it is


@dataclass(frozen=True)
class Network:
    """A MODEL with the batch sizes and text lengths (None: no text, or the model's own) that it is traced with."""

    model: str
    batch_sizes: tuple[int, ...]
    seq_lens: tuple[int | None, ...] = (None,)
    steps: tuple[tuple[int, int], ...] = ()  # batch size and tokens in the cache, of a decoder's step


def _text(
    name: str, *overrides: str, batch_sizes: tuple[int, ...] = (1, 4), seq_lens: tuple[int, ...] = (32, 128)
) -> Network:
    return Network(_with(name, overrides), batch_sizes, seq_lens)


def _image(name: str, *overrides: str, batch_sizes: tuple[int, ...] = (1, 4)) -> Network:
    return Network(_with(name, overrides), batch_sizes)


def _with(name: str, overrides: tuple[str, ...]) -> str:
    source = name if ":" in name else f"transformers:{name}"
    return source + (f"?{'&'.join(overrides)}" if overrides else "")


TWO = "num_hidden_layers=2"

ENCODERS = (
    _text("BertModel", TWO, batch_sizes=(1, 2, 8), seq_lens=(16, 128, 384)),
    _text("BertForMaskedLM", TWO, seq_lens=(64, 128), batch_sizes=(1, 2)),
    _text(
        "BertForPreTraining",
        TWO,
        "hidden_size=1024",
        "num_attention_heads=16",
        "intermediate_size=4096",
        batch_sizes=(1,),
        seq_lens=(64, 256),
    ),
    _text(
        "BertForNextSentencePrediction",
        TWO,
        "hidden_size=512",
        "num_attention_heads=8",
        "intermediate_size=2048",
    ),
    _text("RobertaForSequenceClassification", TWO, "vocab_size=50265", "max_position_embeddings=514"),
    _text("RobertaForMultipleChoice", TWO, "vocab_size=50265", "max_position_embeddings=514", seq_lens=(64,)),
    _text(
        "XLMRobertaForTokenClassification",
        TWO,
        "vocab_size=250002",
        "max_position_embeddings=514",
        seq_lens=(96,),
    ),
    _text(
        "CamembertForQuestionAnswering",
        TWO,
        "vocab_size=32005",
        "max_position_embeddings=514",
        seq_lens=(48, 256),
    ),
    _text("DistilBertForMaskedLM", TWO, batch_sizes=(1, 2)),
    _text("DistilBertForQuestionAnswering", TWO, seq_lens=(384,)),
    _text(
        "AlbertForMaskedLM",
        TWO,
        "vocab_size=30000",
        "hidden_size=768",
        "num_attention_heads=12",
        "intermediate_size=3072",
    ),
    _text(
        "AlbertForMultipleChoice",
        TWO,
        "vocab_size=30000",
        "hidden_size=1024",
        "num_attention_heads=16",
        "intermediate_size=4096",
        batch_sizes=(1,),
        seq_lens=(64,),
    ),
    _text("ElectraForPreTraining", TWO),
    _text(
        "ElectraForTokenClassification",
        TWO,
        "embedding_size=768",
        "hidden_size=768",
        "num_attention_heads=12",
        "intermediate_size=3072",
    ),
    _text(
        "DebertaForSequenceClassification",
        TWO,
        "relative_attention=true",
        'pos_att_type=["c2p","p2c"]',
        "position_biased_input=false",
        "vocab_size=50265",
    ),
    _text(
        "DebertaV2ForQuestionAnswering",
        TWO,
        "hidden_size=768",
        "num_attention_heads=12",
        "intermediate_size=3072",
        "relative_attention=true",
        'pos_att_type=["p2c","c2p"]',
        "position_biased_input=false",
    ),
    _text("FlaubertForSequenceClassification", "n_layers=2", "emb_dim=768", "n_heads=12", "vocab_size=68729"),
    _text(
        "FlaubertWithLMHeadModel",
        "n_layers=2",
        "emb_dim=512",
        "n_heads=8",
        "vocab_size=68729",
        batch_sizes=(1,),
        seq_lens=(64,),
    ),
    _text("XLMWithLMHeadModel", "n_layers=2", "emb_dim=1024", "n_heads=8", batch_sizes=(1,), seq_lens=(64,)),
    _text("XLMForQuestionAnsweringSimple", "n_layers=2", "emb_dim=1024", "n_heads=16", batch_sizes=(1,)),
    _text("XLNetForSequenceClassification", "n_layer=2", "d_model=768", "n_head=12", "d_inner=3072"),
    _text(
        "XLNetLMHeadModel",
        "n_layer=2",
        "d_model=768",
        "n_head=12",
        "d_inner=3072",
        batch_sizes=(1,),
        seq_lens=(64,),
    ),
    _text("RoFormerForMaskedLM", TWO, batch_sizes=(1, 2), seq_lens=(128,)),
    _text("MegatronBertModel", TWO, batch_sizes=(1,)),
    _text("CanineModel", "num_hidden_layers=2", batch_sizes=(1,), seq_lens=(128,)),
    _text("DPRQuestionEncoder", TWO, seq_lens=(64,)),
    _text("LukeModel", TWO, seq_lens=(96,)),
)

DECODERS = (
    _text("GPT2LMHeadModel", TWO, batch_sizes=(1, 2), seq_lens=(64, 128)),
    _text("GPT2DoubleHeadsModel", TWO, batch_sizes=(1,), seq_lens=(64,)),
    _text(
        "GPT2ForSequenceClassification",
        TWO,
        "n_embd=1024",
        "n_head=16",
        seq_lens=(32, 512),
        batch_sizes=(1, 2),
    ),
    _text("OpenAIGPTLMHeadModel", TWO, batch_sizes=(1, 2), seq_lens=(128,)),
    _text("OpenAIGPTDoubleHeadsModel", TWO, batch_sizes=(1,), seq_lens=(64,)),
    _text("CTRLLMHeadModel", "n_layer=2", "vocab_size=32000", batch_sizes=(1,), seq_lens=(64,)),
    _text(
        "GPTNeoForCausalLM",
        "num_layers=2",
        "hidden_size=768",
        "num_heads=12",
        'attention_types=[[["global","local"],1]]',
        batch_sizes=(1,),
        seq_lens=(96,),
    ),
    _text(
        "GPTNeoXForCausalLM",
        TWO,
        "hidden_size=1024",
        "num_attention_heads=16",
        "intermediate_size=4096",
        batch_sizes=(1,),
        seq_lens=(64, 128),
    ),
    _text("OPTForCausalLM", TWO, batch_sizes=(1, 2), seq_lens=(64, 128)),
    _text(
        "BloomForCausalLM", "n_layer=2", "hidden_size=1024", "n_head=16", "vocab_size=50000", batch_sizes=(1,)
    ),
    _text(
        "LlamaForCausalLM",
        TWO,
        "hidden_size=2048",
        "num_attention_heads=32",
        "num_key_value_heads=4",
        "intermediate_size=5632",
        batch_sizes=(1, 2),
        seq_lens=(32, 64),
    ),
    _text(
        "LlamaModel",
        TWO,
        "hidden_size=2048",
        "num_attention_heads=32",
        "num_key_value_heads=8",
        "intermediate_size=8192",
        batch_sizes=(1,),
        seq_lens=(1, 128, 256),
    ),
    _text(
        "MistralForCausalLM",
        TWO,
        "hidden_size=1024",
        "num_attention_heads=16",
        "num_key_value_heads=4",
        "intermediate_size=3584",
        batch_sizes=(1, 2),
        seq_lens=(128,),
    ),
    _text(
        "Qwen2Model",
        TWO,
        "hidden_size=896",
        "num_attention_heads=14",
        "num_key_value_heads=2",
        "intermediate_size=4864",
        batch_sizes=(1, 4),
    ),
    _text(
        "Qwen2ForSequenceClassification",
        TWO,
        "hidden_size=1536",
        "num_attention_heads=12",
        "num_key_value_heads=2",
        "intermediate_size=8960",
        "vocab_size=50000",
        batch_sizes=(1,),
        seq_lens=(64, 128),
    ),
    _text(
        "Qwen3ForCausalLM",
        TWO,
        "hidden_size=1024",
        "num_attention_heads=16",
        "num_key_value_heads=8",
        "head_dim=128",
        "intermediate_size=3072",
        "vocab_size=50000",
        batch_sizes=(1, 2),
        seq_lens=(64, 128),
    ),
    _text(
        "GemmaModel",
        TWO,
        "hidden_size=2048",
        "num_attention_heads=8",
        "num_key_value_heads=1",
        "head_dim=256",
        "intermediate_size=8192",
        "vocab_size=50000",
        batch_sizes=(1,),
        seq_lens=(64, 128),
    ),
    _text(
        "Gemma2ForCausalLM",
        TWO,
        "hidden_size=1152",
        "num_attention_heads=4",
        "num_key_value_heads=2",
        "head_dim=256",
        "intermediate_size=6912",
        "vocab_size=50000",
        batch_sizes=(1,),
        seq_lens=(64, 128),
    ),
    _text(
        "Gemma3ForCausalLM",
        TWO,
        "hidden_size=640",
        "num_attention_heads=4",
        "num_key_value_heads=1",
        "head_dim=256",
        "intermediate_size=2048",
        "vocab_size=50000",
        'layer_types=["sliding_attention","full_attention"]',
        batch_sizes=(1, 2),
        seq_lens=(64, 256),
    ),
    _text(
        "PhiForCausalLM",
        TWO,
        "hidden_size=2048",
        "num_attention_heads=32",
        "intermediate_size=8192",
        "vocab_size=32000",
        batch_sizes=(1,),
        seq_lens=(64, 128),
    ),
    _text(
        "Phi3Model",
        TWO,
        "hidden_size=1536",
        "num_attention_heads=16",
        "num_key_value_heads=4",
        "intermediate_size=4096",
        batch_sizes=(1,),
        seq_lens=(64, 128),
    ),
    _text(
        "FalconForCausalLM",
        TWO,
        "hidden_size=1024",
        "num_attention_heads=16",
        "vocab_size=50304",
        "alibi=true",
        "multi_query=false",
        "parallel_attn=false",
        "bias=true",
        batch_sizes=(1,),
        seq_lens=(64, 128),
    ),
    _text("FalconModel", TWO, "hidden_size=2048", "num_attention_heads=32", batch_sizes=(1,), seq_lens=(64,)),
    _text(
        "MixtralModel",
        TWO,
        "hidden_size=768",
        "num_attention_heads=12",
        "num_key_value_heads=4",
        "intermediate_size=2048",
        "num_local_experts=8",
        batch_sizes=(1,),
        seq_lens=(64, 128),
    ),
    _text("MambaForCausalLM", TWO, batch_sizes=(1,), seq_lens=(64,)),
    _text(
        "HeliumModel",
        TWO,
        "hidden_size=1024",
        "num_attention_heads=16",
        "num_key_value_heads=16",
        "head_dim=64",
        "intermediate_size=2816",
        batch_sizes=(1,),
        seq_lens=(96,),
    ),
    # the widths of 3 to 8 billion: a step of theirs is long reading of weights, with few small calls between
    _text(
        "Qwen3ForCausalLM",
        TWO,
        "hidden_size=2560",
        "num_attention_heads=32",
        "num_key_value_heads=8",
        "head_dim=128",
        "intermediate_size=9728",
        "vocab_size=32000",
        batch_sizes=(1,),
        seq_lens=(32,),
    ),
    _text(
        "LlamaForCausalLM",
        TWO,
        "hidden_size=3072",
        "num_attention_heads=24",
        "num_key_value_heads=8",
        "intermediate_size=8192",
        "vocab_size=48000",
        batch_sizes=(1,),
        seq_lens=(48,),
    ),
    _text(
        "GPTNeoXForCausalLM",
        TWO,
        "hidden_size=2560",
        "num_attention_heads=32",
        "intermediate_size=10240",
        "vocab_size=50432",
        batch_sizes=(1,),
        seq_lens=(16,),
    ),
    _text(
        "MistralForCausalLM",
        "num_hidden_layers=1",
        "hidden_size=4096",
        "num_attention_heads=32",
        "num_key_value_heads=8",
        "intermediate_size=14336",
        "vocab_size=32000",
        batch_sizes=(1,),
        seq_lens=(64,),
    ),
)

SEQUENCE_TO_SEQUENCE = (
    _text("T5Model", "num_layers=2", "num_decoder_layers=2", seq_lens=(64, 128)),
    _text(
        "T5ForConditionalGeneration",
        "num_layers=2",
        "num_decoder_layers=2",
        "d_model=768",
        "d_ff=3072",
        "num_heads=12",
        batch_sizes=(1, 2),
        seq_lens=(64, 128),
    ),
    _text(
        "MT5ForConditionalGeneration",
        "num_layers=2",
        "num_decoder_layers=2",
        "vocab_size=50000",
        batch_sizes=(1,),
    ),
    _text(
        "BartModel",
        "encoder_layers=2",
        "decoder_layers=2",
        "d_model=768",
        "encoder_attention_heads=12",
        "decoder_attention_heads=12",
        "encoder_ffn_dim=3072",
        "decoder_ffn_dim=3072",
    ),
    _text(
        "BartForConditionalGeneration",
        "encoder_layers=2",
        "decoder_layers=2",
        batch_sizes=(1,),
        seq_lens=(64,),
    ),
    _text(
        "BartForSequenceClassification",
        "encoder_layers=2",
        "decoder_layers=2",
        batch_sizes=(1,),
        seq_lens=(128,),
    ),
    _text(
        "MBartForConditionalGeneration",
        "encoder_layers=2",
        "decoder_layers=2",
        "vocab_size=50000",
        batch_sizes=(1,),
        seq_lens=(96,),
    ),
    _text(
        "BlenderbotSmallForConditionalGeneration",
        "encoder_layers=2",
        "decoder_layers=2",
        batch_sizes=(1,),
        seq_lens=(128,),
    ),
    _text(
        "WhisperForConditionalGeneration",
        "encoder_layers=2",
        "decoder_layers=2",
        "d_model=512",
        "encoder_attention_heads=8",
        "decoder_attention_heads=8",
        "encoder_ffn_dim=2048",
        "decoder_ffn_dim=2048",
        batch_sizes=(1,),
        seq_lens=(8, 64),
    ),
    _text(
        "WhisperModel",
        "encoder_layers=2",
        "decoder_layers=2",
        "d_model=384",
        "encoder_attention_heads=6",
        "decoder_attention_heads=6",
        "encoder_ffn_dim=1536",
        "decoder_ffn_dim=1536",
        batch_sizes=(1, 2),
        seq_lens=(64,),
    ),
)

VISION = (
    _image("ViTForImageClassification", TWO, "num_labels=1000"),
    _image(
        "ViTModel",
        TWO,
        "hidden_size=384",
        "num_attention_heads=6",
        "intermediate_size=1536",
        batch_sizes=(1, 8),
    ),
    _image(
        "DeiTForImageClassification",
        TWO,
        "hidden_size=192",
        "num_attention_heads=3",
        "intermediate_size=768",
        "num_labels=1000",
        batch_sizes=(1, 8),
    ),
    _image("SwinForImageClassification", "depths=[2,2,2,2]", "num_labels=1000", batch_sizes=(1, 2)),
    _image("Swinv2Model", "depths=[2,2,2,2]", "window_size=7", batch_sizes=(1,)),
    _image(
        "BeitForImageClassification",
        TWO,
        "num_labels=1000",
        "use_relative_position_bias=true",
        "use_absolute_position_embeddings=false",
    ),
    _text(
        "CLIPModel",
        "text_config.num_hidden_layers=2",
        "vision_config.num_hidden_layers=2",
        batch_sizes=(1, 4),
        seq_lens=(16, 77),
    ),
    _text(
        "SiglipModel",
        "text_config.num_hidden_layers=2",
        "vision_config.num_hidden_layers=2",
        batch_sizes=(1,),
        seq_lens=(64,),
    ),
    _image("ViTMAEModel", TWO, batch_sizes=(1, 2)),
    _image("VideoMAEModel", TWO, batch_sizes=(1,)),
    _image("ResNetForImageClassification", "depths=[2,2,2,2]", "num_labels=1000", batch_sizes=(1, 2)),
    _image("SwiftFormerForImageClassification", "num_labels=1000"),
    _image(
        "SwiftFormerForImageClassification",
        "embed_dims=[48,96,192,384]",
        "depths=[4,3,10,5]",
        batch_sizes=(1, 2),
    ),
    _image("HGNetV2ForImageClassification", "num_labels=1000"),
    _image("PPLCNetForImageClassification", "num_labels=1000", batch_sizes=(1, 8)),
    _image("PPLCNetForImageClassification", "scale=2.0", batch_sizes=(1, 4)),
    _image("TextNetForImageClassification", "image_size=224", batch_sizes=(1, 2)),
)

AUDIO = (
    _image("Wav2Vec2ForCTC", TWO, batch_sizes=(1, 2)),
    _image(
        "Wav2Vec2ForSequenceClassification",
        TWO,
        "hidden_size=1024",
        "num_attention_heads=16",
        "intermediate_size=4096",
        'feat_extract_norm="layer"',
        "do_stable_layer_norm=true",
        "conv_bias=true",
        batch_sizes=(1,),
    ),
    _image("ASTForAudioClassification", TWO, batch_sizes=(1,)),
)

CONVOLUTIONAL = (
    _image("zoo:alexnet", batch_sizes=(1, 8, 32)),
    _image("zoo:vgg11", batch_sizes=(1, 4)),
    _image("zoo:vgg16", batch_sizes=(1, 2)),
    _image("zoo:overfeat", batch_sizes=(1, 4)),
    _image("zoo:googlenet", batch_sizes=(1, 8)),
    _image("zoo:inception3", batch_sizes=(1, 4)),
    _image("zoo:resnet18", batch_sizes=(1, 8)),
    _image("zoo:resnet50", batch_sizes=(1, 4)),
    _image("zoo:squeezenet", batch_sizes=(1, 8)),
    _image("zoo:mobilenet_v1", batch_sizes=(1, 8)),
    _image("zoo:mobilenet_v2", batch_sizes=(1, 8)),
    _image("zoo:deep_mnist", batch_sizes=(1, 32, 256)),
    _image("zoo:acoustic_model", batch_sizes=(1, 16, 128)),
    _image("zoo:sensor_net", batch_sizes=(1, 16, 128)),
    # tokens through recurrent layers
    _image("zoo:paradnn_rnn", "layers=2", "embed=256", batch_sizes=(1, 8)),
    _image("zoo:paradnn_rnn", "layers=1", "embed=512", "length=100", "cell=gru", batch_sizes=(1, 4)),
    _image("zoo:paradnn_rnn", "layers=3", "embed=192", "length=30", "cell=rnn", batch_sizes=(1, 16)),
)


def _small(name: str, layers: str, width: str, inner: str, seq_len: int | None, *others: str) -> Network:
    """One sample of a network as small as phones and browsers run: most of its calls take some microseconds."""
    return Network(_with(name, (layers, width, inner, *others)), (1,), (seq_len,))


SMALL = (
    _small(
        "BertModel",
        "num_hidden_layers=6",
        "hidden_size=384",
        "intermediate_size=1536",
        32,
        "num_attention_heads=12",
    ),
    _small(
        "BertModel",
        "num_hidden_layers=12",
        "hidden_size=128",
        "intermediate_size=512",
        64,
        "num_attention_heads=2",
    ),
    _small(
        "RobertaModel",
        "num_hidden_layers=4",
        "hidden_size=256",
        "intermediate_size=1024",
        128,
        "num_attention_heads=4",
    ),
    _small("DistilBertModel", "n_layers=6", "dim=192", "hidden_dim=768", 48, "n_heads=3"),
    _small(
        "AlbertModel",
        "num_hidden_layers=12",
        "hidden_size=312",
        "intermediate_size=1248",
        64,
        "num_attention_heads=12",
    ),
    _small(
        "DebertaV2Model",
        "num_hidden_layers=6",
        "hidden_size=384",
        "intermediate_size=1536",
        64,
        "num_attention_heads=6",
        "relative_attention=true",
        'pos_att_type=["p2c","c2p"]',
    ),
    _small(
        "ViTModel",
        "num_hidden_layers=12",
        "hidden_size=192",
        "intermediate_size=768",
        None,
        "num_attention_heads=3",
        "image_size=112",
    ),
    _small(
        "BeitModel",
        "num_hidden_layers=6",
        "hidden_size=192",
        "intermediate_size=768",
        None,
        "num_attention_heads=3",
    ),
    Network("transformers:MobileNetV2ForImageClassification?image_size=96&num_labels=1000", (1,)),
    Network(
        'transformers:ResNetForImageClassification?depths=[2,2,2,2]&layer_type="basic"&num_labels=1000', (1,)
    ),
    Network(
        "transformers:SwinForImageClassification?embed_dim=48&depths=[2,2,6,2]&num_heads=[2,4,8,16]", (1,)
    ),
    Network("zoo:composed?block=residual&width=32&stages=3&size=64", (1,)),
    Network("zoo:composed?block=inverted&activation=silu&width=16&depth=3&stages=3&size=96", (1,)),
    Network("zoo:composed?block=grouped&width=48&stages=3&size=64", (1,)),
    Network("zoo:composed?block=bottleneck&norm=group&width=64&stages=2&size=48&end=restored", (1,)),
    Network(
        "zoo:composed?block=gated&axes=1&norm=none&width=64&depth=6&stages=1&size=1000&end=positions", (1,)
    ),
    Network("zoo:composed?block=pointwise&axes=1&activation=gelu&width=96&stages=1&size=400", (4,)),
    Network("zoo:paradnn_rnn?layers=1&embed=96&length=24&vocabulary=128", (1,)),
    Network("zoo:paradnn_rnn?layers=2&embed=48&length=40&vocabulary=64&cell=gru", (1,)),
    Network("zoo:paradnn_rnn?layers=1&embed=64&length=60&vocabulary=64&cell=rnn", (1,)),
    Network("zoo:stepwise?loop=lstm&width=96&steps=24", (2,)),
    Network("zoo:stepwise?loop=scan&width=128&steps=24", (1,)),
    Network("zoo:stepwise?loop=decayed&width=192&steps=24", (1,)),
)

SMALL_DECODERS = (
    _small("GPT2Model", "n_layer=6", "n_embd=256", "n_inner=1024", 32, "n_head=4"),
    _small("OPTModel", "num_hidden_layers=6", "hidden_size=320", "ffn_dim=1280", 64, "num_attention_heads=5"),
    _small(
        "LlamaModel",
        "num_hidden_layers=6",
        "hidden_size=576",
        "intermediate_size=1536",
        32,
        "num_attention_heads=9",
        "num_key_value_heads=3",
    ),
    _small(
        "LlamaModel",
        "num_hidden_layers=6",
        "hidden_size=288",
        "intermediate_size=768",
        64,
        "num_attention_heads=6",
        "num_key_value_heads=6",
    ),
    _small(
        "Qwen3Model",
        "num_hidden_layers=8",
        "hidden_size=256",
        "intermediate_size=768",
        48,
        "num_attention_heads=4",
        "num_key_value_heads=2",
        "head_dim=64",
    ),
    _small("T5Model", "num_layers=3", "d_model=256", "d_ff=1024", 48, "num_heads=4", "num_decoder_layers=3"),
    _small(
        "BartModel",
        "encoder_layers=3",
        "d_model=256",
        "encoder_ffn_dim=1024",
        32,
        "decoder_layers=3",
        "decoder_ffn_dim=1024",
        "encoder_attention_heads=4",
        "decoder_attention_heads=4",
    ),
)

CACHELESS = ("OpenAIGPT", "XLNet", "XLM")  # decoders without a cache of transformers' own
STEPS = (
    (1, 500),
    (8, 120),
    (2, 1000),
    (1, 2000),
    (4, 250),
    (1, 60),
    (2, 400),
    (1, 1023),
    (16, 30),
    (1, 4000),
)


def _stepping(networks: tuple[Network, ...]) -> tuple[Network, ...]:
    """Decoders with one step each, its batch and context in turn, the context within the model's positions."""
    stepping = []
    for number, network in enumerate(networks):
        batch, context = STEPS[number % len(STEPS)]
        if not network.model.removeprefix("transformers:").startswith(CACHELESS):
            network = replace(network, steps=((batch, context),))
        stepping.append(network)
    return tuple(stepping)


NETWORKS: tuple[Network, ...] = (
    *ENCODERS,
    *_stepping(DECODERS),
    *_stepping(SEQUENCE_TO_SEQUENCE),
    *VISION,
    *AUDIO,
    *CONVOLUTIONAL,
    *SMALL,
    *_stepping(SMALL_DECODERS),
)

QUICK: tuple[str, ...] = (
    "zoo:alexnet",
    "zoo:resnet18",
    "zoo:resnet50",
    "zoo:mobilenet_v2",
    "zoo:squeezenet",
    "zoo:googlenet",
    *(
        next(network.model for network in NETWORKS if network.model.startswith(f"transformers:{name}?"))
        for name in (
            "BertModel",
            "GPT2LMHeadModel",
            "Qwen2Model",
            "T5Model",
            "ViTModel",
            "SwinForImageClassification",
            "DistilBertForMaskedLM",
            "WhisperModel",
        )
    ),
    *(network.model for network in (*SMALL, *SMALL_DECODERS)),
)
"""Diverse MODELs of `NETWORKS` that are cheap to build and to run."""

WIDTHS = ("hidden_size", "d_model", "n_embd", "dim", "emb_dim", "embed_dim")
HEADS = (
    "num_attention_heads",
    "encoder_attention_heads",
    "decoder_attention_heads",
    "num_heads",
    "n_heads",
    "n_head",
)
INNER = (
    "intermediate_size",
    "encoder_ffn_dim",
    "decoder_ffn_dim",
    "ffn_dim",
    "d_ff",
    "dff",
    "d_inner",
    "n_inner",
    "hidden_dim",
)
FOLLOWERS = (
    "pooler_hidden_size",
    "word_embed_proj_dim",
    "projection_size",
)  # equal to the width, and stay so


def swept(model: str, generator: random.Random) -> list[Network]:
    """Networks drawn from a family's ranges where `model` names a family of the zoo by its bare name; none where it does not."""
    ranges = index_ranges(model)
    if ranges is None:
        return []
    found: dict[str, Network] = {}
    for _ in range(4 * SWEPT):
        if len(found) < SWEPT:
            chosen = {key: generator.choice(values) for key, values in ranges.items()}
            batch = int(chosen.pop("batch_size", 1))
            drawn = with_overrides(model, chosen)
            found.setdefault(drawn, Network(drawn, (batch,)))
    return list(found.values())


def jittered(network: Network, generator: random.Random) -> Network:
    """The same architecture with its width, heads, inner width, vocabulary, image, batch and text a little changed.

    The number of heads moves by up to a third and the width with it, so a head keeps its size; grouped key heads still
    divide the query heads. What is proposed is built on meta; where nothing proposed can be built, or the network is
    not of `transformers`, only batch and length change.
    """
    changed = replace(
        network,
        batch_sizes=tuple(sorted({_near(size, generator) for size in network.batch_sizes})),
        seq_lens=tuple(
            length if length is None else _shorter(length, generator) for length in network.seq_lens
        ),
        steps=tuple(
            (_near(batch, generator), _shorter(context, generator)) for batch, context in network.steps
        ),
    )
    if not network.model.startswith("transformers:"):
        return changed
    config: Any = resolve(network.model).build("meta").config
    for _ in range(ATTEMPTS):
        model = with_overrides(network.model, dict(_changes(config, generator)))
        try:
            resolve(model).build("meta")
        except NeuralPowerError:
            continue
        return replace(changed, model=model)
    return changed


def _near(size: int, generator: random.Random) -> int:
    """`size`, changed by up to a half and never below one."""
    return max(1, round(size * generator.uniform(0.6, 1.5)))


def _shorter(length: int, generator: random.Random) -> int:
    """Between half of `length` and all of it, so that it stays within the model's positions."""
    return max(1, round(length * generator.uniform(0.5, 1.0)))


def _changes(config: Any, generator: random.Random, prefix: str = "") -> Iterator[tuple[str, int | str]]:
    """Overrides that change `config`, and the text and vision configurations in it."""
    seed = generator.random()
    for inner in ("text_config", "vision_config"):
        if getattr(config, inner, None) is not None:  # the same change, as their outputs may have to meet
            yield from _changes(getattr(config, inner), random.Random(seed), f"{inner}.")
    values = config.to_dict()
    width = next((key for key in WIDTHS if _is_size(values.get(key))), None)
    if width is not None:
        for key, value in (*_widths(values, width, generator), *_sizes(values, generator)):
            yield prefix + key, value


def _widths(values: dict[str, Any], width: str, generator: random.Random) -> Iterator[tuple[str, int | str]]:
    """New heads and widths; a head keeps its size, and the heads that share a key head stay together."""
    heads = {key: values[key] for key in HEADS if _is_size(values.get(key))}
    stages = values.get("num_heads")
    if isinstance(stages, list):  # every stage of Swin doubles both; its hidden_size follows
        width = "embed_dim"
        old, new = stages[0], max(1, stages[0] + generator.choice((-1, 0, 1)))
        yield "num_heads", str([count // old * new for count in stages]).replace(" ", "")
    elif heads:
        number = next(iter(heads.values()))
        key_heads: int = values.get("num_key_value_heads") or 0
        old = key_heads if key_heads > 1 and number % key_heads == 0 else number
        new = max(1, old + generator.randint(-max(1, old // 3), max(1, old // 3)))
        for key, value in heads.items():
            yield key, value // old * new
        if key_heads:
            yield "num_key_value_heads", new if key_heads == old else key_heads
    else:
        old, new = values[width], max(64, round(values[width] * generator.uniform(0.7, 1.3) / 64) * 64)
    for key in (width, *FOLLOWERS):
        if values.get(key) == values[width]:
            yield key, values[width] // old * new
    for key in INNER:
        if _is_size(values.get(key)):
            yield key, max(64, round(values[key] * new / old * generator.uniform(0.7, 1.3) / 16) * 16)


def _sizes(values: dict[str, Any], generator: random.Random) -> Iterator[tuple[str, int | str]]:
    """A little more vocabulary (special tokens stay in it), and images of some patches more or less."""
    if _is_size(values.get("vocab_size")):
        yield "vocab_size", round(values["vocab_size"] * generator.uniform(1.0, 1.1))
    image, patch = values.get("image_size"), values.get("patch_size")
    if (
        isinstance(image, int) and isinstance(patch, int) and "depths" not in values
    ):  # stages want whole windows
        yield "image_size", max(2 * patch, image + patch * generator.randint(-3, 3))


def _is_size(value: object) -> TypeGuard[int]:
    """Whether `value` is a positive whole number."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
