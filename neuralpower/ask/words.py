"""The words that options accept, and the headings under which --help lists options; torch is not imported.

The lists are copies, since the modules that use them import torch; a test compares both.
"""

from __future__ import annotations

from collections.abc import Iterable

PHASES = ("forward", "training", "prefill", "decode", "generate", "step", "backward")
FITTED_PHASES = ("forward", "training", "prefill", "decode", "generate")
EVALUATED_PHASES = ("forward", "training", "prefill", "decode")
RAN_PHASES = ("forward", "training")  # of networks that run here under a profiler
COLLECTED_PHASES = ("forward", "backward", "optimizer")
SCHEDULES = ("1f1b", "gpipe", "interleaved")
ZERO = ("1", "2", "3")
RANKED = ("throughput", "latency", "cost", "energy")  # what layouts are ranked by
GUIDANCE = ("on", "off")
OFFLOAD = ("model", "sequential", "group")
RUNS = ("eager", "graph", "compile", "engine")
VIEWS = ("layer", "kind", "module", "tree")
ROWS = ("layer", "module", "kind", "operator")
SORTS = ("runtime_s", "flops", "bytes", "parameters", "memory", "calls", "order")
UNITS = ("flop", "mac")
CONVENTIONS = ("matmul", "all-ops", "thop", "fvcore", "pytorch-api")
OPTIMIZERS = tuple(
    """
    sgd momentum rmsprop adam adamw adagrad sparseadam adadelta adamax asgd nadam radam rprop adafactor
    transformers-adafactor muon lion adam8bit adamw8bit lion8bit pagedadamw pagedadamw8bit pagedlion8bit
    """.split()
)
TABLES = tuple(  # of a dataset: layer kinds, and whole networks
    """
    activation attention collective conv1d conv2d conv3d conv_transpose2d elementwise embedding experts fused
    grouped latent_attention linear linear_attention matmul movement norm optimizer pool2d pool3d recurrent
    reduction scan softmax network
    """.split()
)
STANDINGS = ("tokens/s", "energy", "price", "carbon")  # what devices are ranked by
SCORES = ("latency", "energy", "memory")
LEARNERS = ("hybrid", "lasso")
BASELINES = ("neuralpower", "roofline")  # that measured networks are compared with, besides predictors
PRESETS = ("quick", "standard", "full", "gaps")
EXECUTORS = ("local", "ray")
ENGINES = ("vllm", "sglang", "llama.cpp")  # that serve language models
SCHEDULERS = ("vllm", "sglang")  # of these: engines whose steps are simulated
PLANNED = ("devices", "cost", "energy")  # what plans are ranked by
BACKENDS = ("gloo", "nccl")  # that exchange between devices
SUMMARIES = ("exploration", "weak", "strong", "statistics", "time", "all")
LAB_STEPS = ("all", "train", "profile", "report", "compare")
TASKS = (
    "language",
    "encoder",
    "text-to-text",
    "vision",
    "vision-language",
    "speech",
    "image",
    "video",
    "audio",
    "zoo",
)
MEMORY_FORMATS = ("channels_last",)
FORMATS = ("table", "json", "csv", "md", "html")
DTYPES = "float32, bfloat16, float16, float64, tf32, ..."  # that --help names
WEIGHTS = tuple("int4 int8 w8a8 fp8 nvfp4 mxfp4 nf4 awq gptq q4_k_m q8_0".split())
PARADNN_OPTIMIZERS = ("rms", "sgd", "momentum", "adam")
RMSPROPS = ("paradnn", "tensorflow", "ifarm", "pytorch", "keras")
PARADNN_MODES = {"train": "training", "infer": "forward", "inference": "forward"}
SYNONYMS = {
    "cost": "usd dollar dollars money price",
    "price": "usd dollar dollars money cost",
    "carbon": "co2 co2e emissions",
    "energy": "efficiency joules watts kwh tokens/w tokens/j tokens-per-watt perf/watt perf-per-watt",
    "throughput": "speed tokens tokens/s samples/s images/h fps",
    "tokens/s": "speed tokens throughput latency samples/s images/h videos/h sounds/h fps",
    "training": "train finetune",
    "forward": "inference infer eval",
    "generate": "generation chat",
    "devices": "gpus count",
}
"""A word of options -> what else it is called."""


def meant_by(text: str, known: Iterable[str]) -> str | None:
    """The first of the words that an option has which is also called that."""
    return next((word for word in known if text.lower() in SYNONYMS.get(word, "").split()), None)


# The headings under which --help lists options.

INPUT = "Input"
TARGET = "Device and predictor"
SEVERAL = "Several devices"
ENGINE = "Engine"
LANGUAGE = "Language models"
IMAGES = "Images and films"
TRAINING = "Training"
MEASURING = "Measuring"
SPACE = "Grid"
COST = "Energy, money and carbon"
OUTPUT = "Output"
GENERAL = "General"
ORDER = (
    INPUT,
    TARGET,
    LANGUAGE,
    IMAGES,
    TRAINING,
    ENGINE,
    SEVERAL,
    MEASURING,
    SPACE,
    COST,
    OUTPUT,
    GENERAL,
)
