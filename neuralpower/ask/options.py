"""The table of options: one entry is a flag of the command line and a keyword of Python.

A group is a `TypedDict`, so that type checkers know the keywords of `neuralpower.predict`; `Option` says how
the command line and messages call it. In a sweep, `Number` and `Dtype` are lists, elsewhere single values.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar, get_args, get_origin, get_type_hints

from typing_extensions import TypedDict

from neuralpower.ask import words
from neuralpower.ask.words import (
    COST,
    ENGINE,
    IMAGES,
    INPUT,
    LANGUAGE,
    MEASURING,
    OUTPUT,
    SEVERAL,
    TARGET,
    TRAINING,
)
from neuralpower.dtypes import AUTOCAST_DTYPES, DTYPES, MEASURABLE, full_name

if TYPE_CHECKING:
    import torch

    from neuralpower.devices.cluster import Cluster as Cluster
    from neuralpower.devices.cluster import Layout as Layout
    from neuralpower.networks.phases import Phase as Phase
    from neuralpower.trace.recipe import Recipe as Recipe

    OneDtype = str | torch.dtype | None
else:  # these would import torch
    OneDtype, Cluster, Layout, Phase, Recipe = str | None, *[Any] * 4

Number = TypeVar("Number")  # int | None, or a list of them
Dtype = TypeVar("Dtype")  # a name or torch's own, or a list of them
Words = Sequence[str]


def no_word(text: str) -> str | None:
    """None: no other text than the words is accepted."""
    return None


def any_word(text: str) -> str | None:
    """The text itself: it is checked later."""
    return text


def _dtype(text: str) -> str | None:
    return text if full_name(text) in DTYPES else None


def _cast(text: str) -> str | None:
    return text if full_name(text) in AUTOCAST_DTYPES else None


@dataclass(frozen=True)
class Option:
    """What `--help`, docstrings and messages say of an option, and what it accepts."""

    help: str
    panel: str | None = INPUT
    default: Any = None
    flags: str = ""  # instead of the name with hyphens; "-" for an option of Python alone
    what: str = ""  # the noun for one of its words, in messages
    words: Words = ()
    listed: bool = True  # whether --help lists the words
    meant: Callable[[str], str | None] = no_word  # another spelling -> the word; None: it is unknown
    otherwise: str = ""  # the sentence on the default, behind the words
    names: str = ""  # what the text names, such as "device": checked before torch is imported, and completed
    metavar: str | None = None
    several: bool = False  # whether the command takes several words with commas
    least: int | None = None
    hidden: bool = False
    aliases: str = ""  # what other tools call it
    before: str = ""  # its name until 0.2, which is read with a note
    of: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # command -> fields that differ


def _degree(help: str, several: str, metavar: str, aliases: str = "") -> Option:
    swept = {"help": several, "metavar": metavar, "default": "1"}
    return Option(help, SEVERAL, 1, of={"sweep": swept}, aliases=aliases)


def _flag(help: str, panel: str, **more: Any) -> Option:
    return Option(help, panel, default=False, **more)


class Device(TypedDict, total=False):
    """The device to predict."""

    device: Annotated[
        str | Path | None,
        Option(
            "h100, rtx-4090, ... (`devices --specs`), a spec sheet, or cpu: this machine.",
            TARGET,
            names="device",
            aliases="gpu hardware accelerator target",
            of={
                "fit": {
                    "help": "h100, rtx-4090, ..., a spec sheet, or cpu: this machine; a size (24GB); "
                    "or 8xh100-sxm.",
                    "names": "fitted",
                },
                "sweep": {
                    "help": "One or more, with commas: h100, rtx-4090, ... (`devices --specs`), spec sheets, "
                    "or cpu."
                },
                "rank": {
                    "help": "Devices to rank, with commas: h100,l40s; default: all with a sheet or a "
                    "predictor."
                },
            },
        ),
    ]


class Trained(TypedDict, total=False):
    """The predictor."""

    predictor: Annotated[
        Any,
        Option(
            "Name or file; default: for --device, or for this machine.",
            TARGET,
            names="predictor",
            of={
                "sweep": {"help": "Names or files, with commas; default: for --device, or for this machine."}
            },
        ),
    ]


class Sizes(TypedDict, Generic[Number, Dtype], total=False):
    """The phase, and the inputs of a network."""

    phase: Annotated[
        str | Phase | Sequence[Phase],
        Option(
            "Phase to predict",
            default="forward",
            what="phase",
            words=words.PHASES,
            of={
                "predict": {"help": "Phase: one pass, a training step, or a language model's phase"},
                "fit": {"words": words.FITTED_PHASES},
                "parallel": {"help": "What is run", "words": words.FITTED_PHASES},
                "evaluate": {"help": "Phase to run", "words": words.EVALUATED_PHASES},
                "profile": {
                    "help": "Phase to run; training: forward, loss, backward, optimizer",
                    "words": words.RAN_PHASES,
                },
            },
        ),
    ]
    batch_size: Annotated[
        Number,
        Option(
            "Samples in a batch; default: 1, or the network's own.",
            flags="--batch-size -b",
            aliases="batch batchsize bs",
            of={
                "sweep": {
                    "help": "1,8,32; 1:256 doubles; 64:512:64 adds 64; default: as in predict.",
                    "before": "batch_sizes",
                },
                "parallel": {
                    "help": "Samples in one pass of a replica: 1, or several: 1,2,4.",
                    "default": "1",
                },
            },
        ),
    ]
    seq_len: Annotated[
        Number,
        Option(
            "Tokens per sample.",
            aliases="seq seqlen seq_length sequence_length length",
            of={
                "sweep": {"help": "Tokens per sample, written in the same way.", "before": "seq_lens lengths"}
            },
        ),
    ]
    input_shape: Annotated[
        Sequence[int] | str | None,
        Option("Shape of one sample, such as 3x224x224.", aliases="input_size shape input_data"),
    ]
    dtype: Annotated[
        Dtype,
        Option(
            f"Dtype of weights and inputs: {words.DTYPES}",
            what="dtype",
            words=MEASURABLE,
            listed=False,
            meant=_dtype,
            otherwise="Default: as published, else float32.",
            aliases="precision torch_dtype data_type",
            of={
                "sweep": {
                    "help": f"One or more, with commas: {words.DTYPES}",
                    "several": True,
                    "metavar": "<dtype,...>",
                    "before": "dtypes",
                },
                "profile": {"default": "float32", "otherwise": ""},
                "report": {"default": "float32", "otherwise": ""},
            },
        ),
    ]
    weights: Annotated[
        str | None,
        Option(
            "Quantisation of weights; int4:64 has groups of 64, transformer=nf4 is of a part",
            what="weights",
            words=words.WEIGHTS,
            meant=any_word,
            otherwise="Default: same as the checkpoint.",
            aliases="quantization quantize quant weight_dtype",
            of={"plan": {"help": "Quantisations of weights to try, as in none,fp8"}},
        ),
    ]


class Beginning(TypedDict, Generic[Number], total=False):
    """The tokens with which a phase of a language model begins."""

    context: Annotated[
        Number,
        Option(
            "decode: tokens in the cache before the step.",
            LANGUAGE,
            of={"sweep": {"help": "decode: tokens in the cache before the step, such as 512:8192."}},
        ),
    ]
    prompt: Annotated[
        Number,
        Option(
            "prefill, generate: tokens of the prompt.",
            LANGUAGE,
            of={
                "sweep": {"help": "prefill, generate: tokens of the prompt, such as 512:8192."},
                "evaluate": {"help": "prefill: tokens of the prompt."},
            },
        ),
    ]


class Made(TypedDict, total=False):
    """The tokens that it makes, and how they are spread over experts."""

    new_tokens: Annotated[int | None, Option("generate: tokens to make after the prompt.", LANGUAGE)]
    routing: Annotated[
        Any,
        Option(
            "Tokens of a mixture's experts: uniform, worst, or one number for each expert.",
            LANGUAGE,
            "uniform",
        ),
    ]


class Tokens(Beginning[Number], Made, Generic[Number], total=False):
    """The same, and texts of several lengths."""

    lengths: Annotated[
        Sequence[int] | str | None,
        Option(
            "Tokens of each request (prompt, or context of a decode): 812,95,4076, or a file of numbers.",
            LANGUAGE,
        ),
    ]


class Stepped(TypedDict, total=False):
    """The requests of one step of an engine."""

    contexts: Annotated[
        Sequence[int] | str | None,
        Option(
            "step: cached tokens of each request that gets its next token: 812,95,4076, or a file.",
            LANGUAGE,
        ),
    ]
    chunks: Annotated[
        Sequence[tuple[int, int]] | str | None,
        Option("step: new@cached tokens of each prompt that is read: 512@0,256@1024.", LANGUAGE),
    ]


class Pictured(TypedDict, total=False):
    """What a pipeline of diffusion makes."""

    resolution: Annotated[
        Sequence[int] | str | None,
        Option("Pixels of an image or a film: 1024x1024 (width x height); default: the pipeline's.", IMAGES),
    ]
    frames: Annotated[int | None, Option("Frames of a film; default: the pipeline's.", IMAGES)]
    steps: Annotated[
        int | None,
        Option("Denoising steps; default: the pipeline's.", IMAGES, aliases="num_inference_steps"),
    ]
    guidance: Annotated[
        str | None,
        Option(
            "Whether each step runs with and without the text",
            IMAGES,
            what="guidance",
            words=words.GUIDANCE,
            otherwise="Default: as the pipeline does.",
            aliases="cfg guidance_scale",
        ),
    ]
    images: Annotated[
        int | None, Option("Images of each prompt; default: 1.", IMAGES, aliases="num_images_per_prompt")
    ]
    tiling: Annotated[bool, _flag("Decode in tiles, which takes less memory.", IMAGES)]
    slicing: Annotated[bool, _flag("Decode one image at a time, which takes less memory.", IMAGES)]
    reuse_steps: Annotated[
        float | None,
        Option("Share of the steps that reuse the prediction of the step before (caching): 0.3.", IMAGES),
    ]
    offload: Annotated[
        str | None,
        Option(
            "What of a pipeline waits in the host's memory until it runs",
            IMAGES,
            what="offload",
            words=words.OFFLOAD,
            otherwise="Default: nothing.",
        ),
    ]
    controlnet: Annotated[
        str | None,
        Option(
            "A ControlNet besides: on, as diffusers makes one of the denoiser, or a network's name.", IMAGES
        ),
    ]
    ip_adapter: Annotated[bool, _flag("An IP-adapter besides: an image, read as four tokens.", IMAGES)]


class Training(TypedDict, total=False):
    """How a network is trained."""

    optimizer: Annotated[
        str,
        Option(
            "Optimizer: adamw, adamw:fused, sgd, momentum (sgd with it), adafactor, muon, ...",
            TRAINING,
            "adamw",
            what="optimizer",
            words=words.OPTIMIZERS,
            meant=any_word,  # with its states given, an optimizer may have any name
            metavar="<name>",
        ),
    ]
    optimizer_states: Annotated[
        float | str | None,
        Option(
            "Numbers that an optimizer of any other name keeps per parameter: 2, or 2:bfloat16.", TRAINING
        ),
    ]
    accumulation: Annotated[int, Option("Micro-batches of --batch-size in a step.", TRAINING, 1)]
    checkpointing: Annotated[bool, _flag("Recompute blocks instead of keeping activations.", TRAINING)]
    master_weights: Annotated[
        bool, _flag("Keep float32 masters, gradients and states of 16-bit weights.", TRAINING)
    ]
    recipe: Annotated[
        Recipe | None, Option("neuralpower.Recipe: the options of training in one.", TRAINING, flags="-")
    ]


class Ways(TypedDict, total=False):
    """How the network runs, and what is kept free of the memory."""

    run: Annotated[
        str | None,
        Option(
            "Way to run",
            TARGET,
            what="way to run",
            words=words.RUNS,
            otherwise="Default: engine for a language model's phases on a GPU, else eager.",
            metavar="<run>",
            aliases="mode backend",
        ),
    ]
    dim: Annotated[
        str | None,
        Option("Sizes of an ONNX file's inputs that vary, by name: batch=8,height=224.", aliases="dims"),
    ]
    memory_format: Annotated[
        str | None,
        Option(
            "Order of the sizes of images, and of the weights that convolve them",
            what="memory format",
            metavar="<format>",
            words=words.MEMORY_FORMATS,
            otherwise="Default: as the network has it.",
        ),
    ]
    autocast: Annotated[
        str | None,
        Option(
            "Cast products to this dtype, as torch.autocast does",
            TRAINING,
            what="dtype of an autocast",
            words=AUTOCAST_DTYPES,
            meant=_cast,
        ),
    ]
    lora: Annotated[
        str | int | None, Option("Train adapters of this rank alone: 16, or 16:q_proj,v_proj.", TRAINING)
    ]
    margin: Annotated[
        float | None,
        Option(
            "Share of the memory to keep free; default: 0 on CPUs and NVIDIA GPUs, on others 0.3 in "
            "training, else 0.1.",
            TARGET,
        ),
    ]


class Set(TypedDict, total=False):
    """How the device is set."""

    power_limit: Annotated[
        str | None,
        Option(
            "Power limit of the device: 300W, or 80% of its own.",
            TARGET,
            of={"sweep": {"help": "Power limits of the device: 250W,300W, or 60%..100% of its own."}},
        ),
    ]
    clock: Annotated[
        str | None,
        Option(
            "Clock of the device's cores: 1410MHz; default: as high as its limit allows.",
            TARGET,
            of={"sweep": {"help": "Clocks of the device's cores: 900MHz,1410MHz."}},
        ),
    ]


class Footprints(TypedDict, total=False):
    """What a pass costs besides its time: none of it by default."""

    node_overhead: Annotated[
        float | str | None, Option("Watts of the node besides its devices, for each device: 400W.", COST)
    ]
    pue: Annotated[float | None, Option("Energy of the site over that of its computers: 1.2.", COST)]
    price: Annotated[
        str | float | Mapping[str, float] | None,
        Option("Price of a device for an hour: 2.49/h, h100=2.49,l40s=0.79, or a file of prices.", COST),
    ]
    currency: Annotated[str | None, Option("Currency of --price; default: USD.", COST)]
    region: Annotated[
        str | None, Option("Country whose electricity is used: DE, FRA; gives the carbon.", COST)
    ]
    carbon_intensity: Annotated[
        str | None,
        Option("g CO2e per kWh: 350; or a table of electricityMaps or WattTime.", COST),
    ]


class Run(TypedDict, total=False):
    """How much is trained."""

    tokens: Annotated[float | None, Option("training: tokens of the whole run, for its kWh.", COST)]
    samples: Annotated[float | None, Option("training: samples of the whole run, for its kWh.", COST)]


class Room(TypedDict, total=False):
    """The memory."""

    memory: Annotated[
        str | float | None,
        Option(
            "The device's memory: 24GiB (a 24 GB card), or 24GB (24 x 10^9 bytes); default: its own.",
            TARGET,
            of={
                "fit": {
                    "help": "Instead of the device's: 24GiB (as of a 24 GB card), or 24GB; without --device "
                    "of an accelerator."
                }
            },
        ),
    ]


class Devices(TypedDict, total=False):
    """Several devices, and what their layouts share."""

    sequence_parallel: Annotated[bool, _flag("Split norms along the sequence, too.", SEVERAL)]
    schedule: Annotated[
        str,
        Option("Order of pipeline stages", SEVERAL, "1f1b", what="pipeline schedule", words=words.SCHEDULES),
    ]
    devices: Annotated[
        str | Cluster | None,
        Option(
            "Devices of a node, such as 8xh100-sxm; instead of --device.",
            SEVERAL,
            names="cluster",
            metavar="<NxDEVICE>",
        ),
    ]
    nodes: Annotated[int | None, Option("Nodes of --devices each; default: 1.", SEVERAL)]
    require_plan: Annotated[
        bool,
        _flag(
            "Refuse a model without a plan for tensor ranks, instead of using a rule.",
            SEVERAL,
            before="strict",
        ),
    ]


class Degrees(Devices, Generic[Number], total=False):
    """A layout, or the options that make one."""

    tensor_parallel: Annotated[
        Number,
        _degree(
            "Ranks that share each product.", "Ranks that share each product: 8, or 1,2,4,8.", "<ranks,...>"
        ),
    ]
    pipeline_parallel: Annotated[
        Number,
        _degree("Stages of consecutive blocks.", "Stages of consecutive blocks.", "<stages,...>"),
    ]
    expert_parallel: Annotated[
        Number,
        _degree(
            "Ranks that share the experts of a mixture.",
            "Ranks that share the experts of a mixture.",
            "<ranks,...>",
        ),
    ]
    data_parallel: Annotated[
        Number,
        _degree(
            "Replicas, each with samples of its own.",
            "Replicas, each with samples of its own.",
            "<replicas,...>",
        ),
    ]
    ulysses_degree: Annotated[
        Number,
        _degree(
            "Images: ranks that share tokens, and attention by heads.",
            "Images: ranks that share tokens, and attention by heads.",
            "<ranks,...>",
        ),
    ]
    ring_degree: Annotated[
        Number,
        _degree(
            "Images: ranks that share tokens, and attention by keys.",
            "Images: ranks that share tokens, and attention by keys.",
            "<ranks,...>",
        ),
    ]
    guidance_degree: Annotated[
        Number,
        _degree(
            "Images: 2 ranks, with the text and without.",
            "Images: 2 ranks, with the text and without: 1,2.",
            "<ranks,...>",
            aliases="cfg_degree cfg_parallel use_cfg_parallel enable_cfg_parallel",
        ),
    ]
    zero: Annotated[
        str | None,
        Option("What replicas share out, by stage of ZeRO", SEVERAL, what="ZeRO stage", words=words.ZERO),
    ]
    fsdp: Annotated[bool, _flag("The same as --zero 3.", SEVERAL)]
    interleave: Annotated[int, Option("Pieces of each stage, for interleaved; default: 2.", SEVERAL, 1)]
    micro_batches: Annotated[
        int | None,
        Option("Batches of a step, or in flight through a pipeline; the same as --accumulation.", SEVERAL),
    ]


class Layouts(TypedDict, total=False):
    """Layouts that Python has in one."""

    layout: Annotated[
        Layout | Sequence[Layout] | None,
        Option(
            "neuralpower.Layout: the degrees in one.",
            SEVERAL,
            flags="-",
            of={"sweep": {"before": "layouts"}},
        ),
    ]
    plan: Annotated[
        Mapping[str, Any] | None,
        Option("Names of modules -> how tensor ranks share them, as torch's styles.", SEVERAL, flags="-"),
    ]


class Served(TypedDict, total=False):
    """The engine that serves the model."""

    engine: Annotated[
        str | None,
        Option(
            "Serve the model under this engine",
            ENGINE,
            what="engine",
            words=words.ENGINES,
            of={
                "traffic": {
                    "words": words.SCHEDULERS,
                    "default": "vllm",
                    "help": "Its scheduler and its pool",
                },
                "plan": {"words": words.SCHEDULERS, "default": "vllm", "help": "Its scheduler and its pool"},
                "predict": {
                    "help": "For run engine: it says the type of a checkpoint; default: vllm",
                    "panel": TARGET,
                },
            },
        ),
    ]


class Engine(Served, total=False):
    """An engine with its options; its pool takes the memory that is left."""

    gpu_memory_utilization: Annotated[
        float | None,
        Option("vllm: share of the memory that it takes; default: 0.9, from 0.21 on 0.92.", ENGINE),
    ]
    mem_fraction_static: Annotated[
        float | None, Option("sglang: share for weights and pool; default: by the memory.", ENGINE)
    ]
    block_size: Annotated[int | None, Option("Tokens of a block; default: 16 of vllm, 1 of sglang.", ENGINE)]
    cache_dtype: Annotated[
        str | None, Option("Type of keys and values: auto, fp8; of llama.cpp also q8_0, q4_0.", ENGINE)
    ]
    max_num_seqs: Annotated[int | None, Option("Sequences that the engine runs at once.", ENGINE)]
    max_num_batched_tokens: Annotated[int | None, Option("Tokens of a step, or of a chunk.", ENGINE)]
    max_model_len: Annotated[
        int | None, Option("Tokens of the longest sequence; default: the model's positions.", ENGINE)
    ]
    kv_cache_memory_bytes: Annotated[
        int | None, Option("vllm: bytes of the pool; default: what the other parts leave.", ENGINE)
    ]
    enforce_eager: Annotated[
        bool, _flag("vllm from 0.21 on: without CUDA graphs, which the pool pays for.", ENGINE)
    ]
    engine_version: Annotated[
        str | None, Option("vllm: the version whose rules hold; default: 0.19.0.", ENGINE)
    ]
    concurrency: Annotated[int | None, Option("Sequences that have to be held at once.", ENGINE)]


class Coverage(TypedDict, total=False):
    """The least coverage."""

    min_coverage: Annotated[
        float | None,
        Option(
            "Exit 3 if coverage is below this share, 0 to 1.",
            OUTPUT,
            flags="--min-coverage --strict",
        ),
    ]


class Limits(TypedDict, total=False):
    """What an answer may be at most."""

    max_latency: Annotated[
        str | None,
        Option(
            "Exit 1 above this latency, such as 30ms.",
            OUTPUT,
            of={"gate": {"help": "Most latency: +5% over the baseline, or 30ms."}},
        ),
    ]
    max_memory: Annotated[
        str | None,
        Option(
            "Exit 1 above this memory at the peak, such as 10GiB.",
            OUTPUT,
            of={"gate": {"help": "Most memory at the peak: +5%, or 10GiB."}},
        ),
    ]
    max_energy: Annotated[
        str | None,
        Option(
            "Exit 1 above this energy, such as 2J.",
            OUTPUT,
            of={"gate": {"help": "Most energy: +5%, or 2J."}},
        ),
    ]
    max_flops: Annotated[
        str | None,
        Option(
            "Exit 1 above these FLOP, such as 4GFLOP.",
            OUTPUT,
            of={"gate": {"help": "Most FLOP: +0%, or 4GFLOP."}},
        ),
    ]


class Strict(TypedDict, total=False):
    """What a gate does with other versions of libraries."""

    strict_versions: Annotated[
        bool, _flag("Fail, too, where another version of torch or transformers changed the layers.", OUTPUT)
    ]


class Remedies(TypedDict, total=False):
    """What is sought where a network does not fit."""

    remedies: Annotated[bool, Option("Whether changes that make it fit are sought.", TARGET, True, flags="-")]


class Drawn(TypedDict, total=False):
    """The requests that a language model's users send."""

    input: Annotated[int, Option("Tokens of a prompt.", default=1024)]
    output: Annotated[int, Option("Tokens of an answer.", default=256)]
    spread: Annotated[float, Option("Lengths are drawn up to this share off, evenly.", default=0.0)]
    burstiness: Annotated[
        float, Option("Shape of the gaps: 1 a Poisson process, below 1 burstier, inf constant.", default=1.0)
    ]
    requests: Annotated[
        int | None,
        Option(
            "Requests that are served; of a trace the first ones.",
            of={"plan": {"help": "Requests of each simulation.", "default": 400}},
        ),
    ]
    seed: Annotated[int, Option("Seed of the random draw.", default=0)]
    trace: Annotated[
        Path | str | None,
        Option(
            "Instead of a rate: CSV or JSON lines of requests, with arrivals and lengths.",
            of={"plan": {"help": "Instead of a rate: a day's requests, for the replicas over time."}},
        ),
    ]
    scale: Annotated[float, Option("--trace: arrivals come this many times as fast.", default=1.0)]


class Deployed(TypedDict, total=False):
    """How a replica of an engine is deployed."""

    dtype: Annotated[OneDtype, options_of(Sizes)["dtype"]]
    weights: Annotated[str | None, options_of(Sizes)["weights"]]
    engine: Annotated[str, options_of(Engine)["engine"]]
    engine_version: Annotated[str | None, options_of(Engine)["engine_version"]]
    block_size: Annotated[int | None, options_of(Engine)["block_size"]]
    cache_dtype: Annotated[str | None, options_of(Engine)["cache_dtype"]]
    gpu_memory_utilization: Annotated[float | None, options_of(Engine)["gpu_memory_utilization"]]
    mem_fraction_static: Annotated[float | None, options_of(Engine)["mem_fraction_static"]]
    kv_cache_memory_bytes: Annotated[int | None, options_of(Engine)["kv_cache_memory_bytes"]]
    enforce_eager: Annotated[bool, options_of(Engine)["enforce_eager"]]
    max_num_seqs: Annotated[int | None, options_of(Engine)["max_num_seqs"]]
    max_num_batched_tokens: Annotated[int | None, options_of(Engine)["max_num_batched_tokens"]]
    prefix_hit: Annotated[
        float, Option("Share of each prompt that the cache already holds.", ENGINE, default=0.0)
    ]
    draft_tokens: Annotated[
        int, Option("Speculative decoding: tokens that are drafted for each step.", ENGINE, default=0)
    ]
    acceptance: Annotated[
        float | None, Option("Probability that a drafted token is accepted; default: 0.7.", ENGINE)
    ]
    draft: Annotated[
        str | None, Option("The model that drafts; without one, drafting takes no time.", ENGINE)
    ]
    synchronous: Annotated[
        bool | None,
        Option(
            "The host plans a step after the one before; default: vllm before 0.14.",
            ENGINE,
            flags="--synchronous/--asynchronous",
        ),
    ]
    link: Annotated[
        str | float | None, Option("What a large exchange between two devices reaches: 14GB/s.", TARGET)
    ]


class Serving(Drawn, Deployed, Set, Footprints, total=False):
    """Keywords of `traffic`."""

    rate: Annotated[
        float | str | None, Option("Requests per second, or 1M/day, 3000/min, drawn as a Poisson process.")
    ]
    users: Annotated[int | None, Option("Instead of a rate: users who each wait for their answer.")]
    sla: Annotated[
        str | None,
        Option("A promise: ttft=500ms,tpot=30ms@p95. Without a rate, finds the highest that keeps it."),
    ]
    tensor_parallel: Annotated[
        int | None, Option("Ranks that share each product; default: all devices.", SEVERAL)
    ]
    pipeline_parallel: Annotated[int, options_of(Degrees)["pipeline_parallel"]]
    expert_parallel: Annotated[int, options_of(Degrees)["expert_parallel"]]
    data_parallel: Annotated[
        int, Option("Ranks of a mixture with requests of their own, in step.", SEVERAL, default=1)
    ]
    layout: Annotated[Layout | None, options_of(Layouts)["layout"]]
    replicas: Annotated[int, Option("Replicas; requests go to them in turn.", SEVERAL, default=1)]
    prefill_replicas: Annotated[
        int, Option("Further replicas that read the prompts, and send the caches on.", SEVERAL, default=0)
    ]
    curve: Annotated[Sequence[float] | str | None, Option("Rates to show besides: 1,2,4,8; or auto.", OUTPUT)]
    compare: Annotated[
        Path | str | None,
        Option(
            "Result of a benchmark to show besides: vLLM's, SGLang's, guidellm's or aiperf's JSON.", OUTPUT
        ),
    ]


class Planning(Drawn, Deployed, Footprints, total=False):
    """Keywords of `plan`."""

    rate: Annotated[float | str | None, Option("Requests per second in all, or 1M/day, 3000/min.")]
    sla: Annotated[str | None, Option("The promise: ttft=500ms,tpot=30ms@p95.")]
    devices: Annotated[
        Sequence[str] | str | None, Option("Devices to choose from: h100-sxm,l40s,b200.", TARGET)
    ]
    tensor_parallel: Annotated[
        Sequence[int] | str | None, Option("Ranks of a replica to try.", SEVERAL, default="1,2,4,8")
    ]
    pipeline_parallel: Annotated[
        Sequence[int] | str | None, Option("Stages of a replica to try.", SEVERAL, default="1")
    ]
    apart: Annotated[bool, _flag("Try prompts on replicas of their own, too.", SEVERAL)]
    by: Annotated[
        str,
        Option("What ranks them; cost needs --price", OUTPUT, "devices", what="ranking", words=words.PLANNED),
    ]
    executor: Annotated[
        str, Option("Where candidates are simulated", TARGET, "local", what="executor", words=words.EXECUTORS)
    ]
    budget: Annotated[
        float | str | None, Option("Most that all devices may cost: 50/h; needs --price.", OUTPUT)
    ]
    keep: Annotated[Path | str | None, Option("Keep what is done in this file, and resume from it.", OUTPUT)]


class Standing(TypedDict, total=False):
    """What devices are ranked by."""

    by: Annotated[
        str,
        Option(
            "What ranks them; price needs --price, carbon --region or --carbon-intensity",
            OUTPUT,
            "tokens/s",
            what="ranking",
            words=words.STANDINGS,
        ),
    ]


class Ranking(Footprints, total=False):
    """What layouts are ranked by."""

    global_batch: Annotated[int | None, Option("training: samples of a step; default: 4 for each device.")]
    by: Annotated[
        str,
        Option(
            "What ranks them; cost needs --price", OUTPUT, "throughput", what="ranking", words=words.RANKED
        ),
    ]


# ---- of Python and the command line ----


class Options(
    Sizes[int | None, OneDtype],
    Tokens[int | None],
    Pictured,
    Training,
    Ways,
    Set,
    Degrees[int],
    Layouts,
    total=False,
):
    """One question about a network."""


class Predicting(Options, Stepped, Served, Coverage, Footprints, Run, total=False):
    """Keywords of `predict`."""


class Comparing(Options, Footprints, Run, total=False):
    """Options of the command `compare`; Python's function has those of `predict`."""


class Standings(Options, Footprints, Standing, total=False):
    """Keywords of `rank`."""


class Gating(Options, Served, Limits, Strict, total=False):
    """Keywords of `gate`."""


class Fitting(Options, Engine, Remedies, total=False):
    """Keywords of `fit`, which takes a memory besides."""


class Explaining(TypedDict, total=False):
    """Keywords of `explain`."""

    against: Annotated[
        str | Path | None,
        Option("Another trace, whose times of the same operators and sizes stand in the next column.", INPUT),
    ]
    capture: Annotated[
        str | Path | None,
        Option("The trace of the capture of its graphs, which has their operators.", INPUT),
    ]


class Evaluating(Sizes[int | None, OneDtype], Beginning[int | None], Training, total=False):
    """Keywords of `evaluate`."""

    energy: Annotated[bool, _flag("Measure watts and joules, too, where a power meter works.", MEASURING)]


Numbers = Sequence[int] | str | None
Dtypes = Sequence[OneDtype] | str | None


class Sweeping(
    Sizes[Sequence[int | None] | str | None, Dtypes],
    Beginning[Numbers],
    Made,
    Pictured,
    Training,
    Ways,
    Set,
    Room,
    Footprints,
    Degrees[Numbers],
    Layouts,
    total=False,
):
    """A grid."""


class Laying(
    Sizes[int | None, OneDtype], Tokens[int | None], Pictured, Training, Ways, Devices, Ranking, total=False
):
    """Keywords of `parallel`."""


@functools.cache
def options_of(table: Any, command: str = "") -> dict[str, Option]:
    """Name -> option of a group, as a command has them."""
    return {name: replace(one, **one.of.get(command, {})) for name, (_, one) in _entries(table).items()}


@functools.cache
def _entries(table: Any) -> dict[str, tuple[Any, Option]]:
    hints = get_type_hints(get_origin(table) or table, include_extras=True)
    return {name: (hint.__origin__, hint.__metadata__[0]) for name, hint in hints.items()}


def kind_of(table: Any, name: str, command: str = "") -> type:
    """The type of an option's value on the command line."""
    hint, option = _entries(table)[name]
    if isinstance(hint, TypeVar):
        texts = (
            hint is not Number
            or command == "sweep"
            or isinstance(options_of(table, command)[name].default, str)
        )
        return str if texts else int
    kinds = get_args(hint) or (hint,)
    return next((kind for kind in (bool, str, Path, float, int) if kind in kinds), str)


def given_in(table: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a group that are given and differ from their defaults."""
    known = options_of(table)
    return {
        name: options[name] for name in known if options.get(name, known[name].default) != known[name].default
    }
