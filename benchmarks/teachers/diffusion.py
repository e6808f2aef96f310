"""Images and videos made on one GPU by diffusers (PATH/served/diffusion.csv, Apache-2.0; ML.ENERGY v3).

A row is a whole generation: the transformer's passes, a text encoder and a decoder. The passes are traced
from diffusers' own classes, with their published configurations (`pip install diffusers`); of the rest a
share is assumed.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neuralpower.devices.spec import find_spec
from neuralpower.layers import Layer
from neuralpower.layers.attention import by_torch
from neuralpower.learn.prior_fit import NETWORK_NOISE, Observation
from neuralpower.trace.tracer import trace

DEVICES = {"H100": "nvidia-h100-sxm5-80gb", "B200": "nvidia-b200"}
BATCHES = (1, 4, 16)  # the others repeat what these say
Inputs = Callable[[int], dict[str, Tensor]]  # of a pass, by batch


@dataclass(frozen=True)
class Generator:
    """A transformer that makes images or videos, as its published configuration says."""

    name: str  # of its class in diffusers
    config: Mapping[str, Any]
    inputs: Inputs  # of a pass, by its batch
    together: int  # samples in a pass for each that is made: 2 where guidance runs both at once
    passes: int  # for each step: 2 where guidance runs one after the other
    beside: float  # share of the time that the text encoder and the decoder take


def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """A tensor without memory."""
    return torch.empty(shape, dtype=dtype, device="meta")


def _time(batch: int) -> Tensor:
    return empty(batch, dtype=torch.int64)


GENERATORS: Mapping[str, Generator] = {
    "black-forest-labs/FLUX.1-dev": Generator(
        "FluxTransformer2DModel",
        {"guidance_embeds": True},
        lambda batch: {
            "hidden_states": empty(batch, 4096, 64),
            "encoder_hidden_states": empty(batch, 512, 4096),
            "pooled_projections": empty(batch, 768),
            "timestep": empty(batch),
            "guidance": empty(batch, dtype=torch.float32),
            "img_ids": empty(4096, 3),
            "txt_ids": empty(512, 3),
        },
        together=1,
        passes=1,
        beside=0.01,
    ),
    "stabilityai/stable-diffusion-3.5-large": Generator(
        "SD3Transformer2DModel",
        {
            **{"num_layers": 38, "num_attention_heads": 38, "caption_projection_dim": 2432},
            **{"pos_embed_max_size": 192, "qk_norm": "rms_norm"},
        },
        lambda batch: {
            "hidden_states": empty(batch, 16, 128, 128),
            "encoder_hidden_states": empty(batch, 333, 4096),
            "pooled_projections": empty(batch, 2048),
            "timestep": _time(batch),
        },
        together=2,
        passes=1,
        beside=0.015,
    ),
    "Wan-AI/Wan2.1-T2V-1.3B-Diffusers": Generator(
        "WanTransformer3DModel",
        {"num_attention_heads": 12, "ffn_dim": 8960, "num_layers": 30},
        lambda batch: {
            "hidden_states": empty(batch, 16, 21, 60, 104),
            "encoder_hidden_states": empty(batch, 512, 4096),
            "timestep": _time(batch),
        },
        together=1,
        passes=2,
        beside=0.04,
    ),
    "zai-org/CogVideoX-2b": Generator(
        "CogVideoXTransformer3DModel",
        {},
        lambda batch: {
            "hidden_states": empty(batch, 13, 16, 60, 90),
            "encoder_hidden_states": empty(batch, 226, 4096),
            "timestep": _time(batch),
        },
        together=2,
        passes=1,
        beside=0.05,
    ),
}


def rows(root: Path) -> Iterator[dict[str, str]]:
    """The generations on one GPU; `root` holds served/."""
    with (root / "served" / "diffusion.csv").open(encoding="utf-8") as file:
        yield from (row for row in csv.DictReader(file) if row["num_gpus"] == "1")


def options_of(row: Mapping[str, str]) -> dict[str, Any]:
    """The options of `predict` for a measured generation."""
    kind = "video" if row["video_width"] else "image"
    found: dict[str, Any] = {
        "batch_size": int(row["batch_size"]),
        "steps": int(row["inference_steps"]),
        "resolution": [int(float(row[f"{kind}_{side}"])) for side in ("width", "height")],
        "dtype": "bfloat16",
    }
    return {**found, "frames": int(float(row["num_frames"]))} if kind == "video" else found


def observations(root: Path) -> list[Observation]:
    """One for each generation on one GPU with a batch of BATCHES; `root` holds served/."""
    return [one for _, one in named_observations(root)]


def named_observations(root: Path) -> Iterator[tuple[str, Observation]]:
    """The same, each with its model."""
    passes: dict[tuple[str, int], Counter[Layer]] = {}
    for row in rows(root):
        name, batch = row["model_id"], int(row["batch_size"])
        if name not in GENERATORS or batch not in BATCHES:
            continue
        made, spec = GENERATORS[name], find_spec(DEVICES[row["gpu_model"]])
        if (name, batch) not in passes:
            passes[name, batch] = layers_of(made, batch)
        calls = passes[name, batch]
        counts = np.array([*calls.values()], dtype=float) * made.passes * int(row["inference_steps"])
        took = float(row["batch_latency_s"]) * (1 - made.beside)
        yield (
            name,
            Observation(
                spec.slug, spec.hardware(), tuple(calls), counts, took, noise=NETWORK_NOISE, chip=spec.chip
            ),
        )


def layers_of(made: Generator, batch: int) -> Counter[Layer]:
    """How often a pass calls each layer."""
    import diffusers

    with torch.device("meta"):
        model = getattr(diffusers, made.name)(**made.config).to(torch.bfloat16).eval()
    found = trace(model, (), made.inputs(batch * made.together))
    return Counter(by_torch(call.layer) for call in found.calls)
