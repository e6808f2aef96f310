"""Memory on NVIDIA GPUs: cuDNN's work space, what CUDA takes, and the bounds."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from neuralpower.devices.spec import spec_of
from neuralpower.layers.workspace import workspace_blocks, workspaces
from neuralpower.layers.workspace.cudnn import PARTIAL
from neuralpower.platforms import PLATFORMS, platform_of
from neuralpower.prediction.memory.peak import forward_memory, training_memory
from neuralpower.trace.lifetimes import Storage, on_library
from neuralpower.trace.steps.step_lifetimes import training_lifetimes
from neuralpower.trace.tracer import trace

MIB = 2**20
META = {"device": "meta"}


def blocks(
    x: tuple[int, ...], w: tuple[int, ...], y: tuple[int, ...], stride: int = 1, groups: int = 1
) -> tuple:
    """Of the forward pass; of the input's and the weight's gradient."""
    source, weight, output = (torch.empty(shape, **META) for shape in (x, w, y))
    rest = ([stride, stride], [0, 0], [1, 1], False, [0, 0], groups)
    forward = workspace_blocks("aten.convolution", (source, weight, None, *rest), {}, output, "cudnn")
    back = (output, source, weight, [0], *rest, [True, True, False])
    return forward, workspace_blocks("aten.convolution_backward", back, {}, None, "cudnn")


def test_convolutions_work_on_copies_with_channels_last() -> None:
    # measured on an H200: 196.1 MiB forward, 196.1 and 198.1 backward
    copies = 2 * 98 * MIB + 64 * 64 * 9 * 4
    shape = (128, 64, 56, 56)
    assert blocks(shape, (64, 64, 3, 3), shape) == ((copies,), (copies, copies + PARTIAL))


@pytest.mark.parametrize(
    ("x", "w", "y", "stride", "groups"),
    [
        ((128, 32, 112, 112), (32, 1, 3, 3), (128, 32, 112, 112), 1, 32),  # depthwise
        ((128, 3, 224, 224), (64, 3, 3, 3), (128, 64, 224, 224), 1, 1),  # colours
        ((8, 4096, 1, 1), (1000, 4096, 1, 1), (8, 1000, 1, 1), 1, 1),  # a product of vectors
    ],
)
def test_some_convolutions_need_none(x: tuple, w: tuple, y: tuple, stride: int, groups: int) -> None:
    assert blocks(x, w, y, stride, groups) == ((), ())


def test_a_product_of_matrices_keeps_a_weights_gradient_for_each_sample() -> None:
    # measured: nothing forward, 8 MiB for the weight's gradient of 256 x 64 numbers and 128 samples
    assert blocks((128, 64, 56, 56), (256, 64, 1, 1), (128, 256, 56, 56)) == ((), (0, 8 * MIB))


def test_channels_last_need_no_copies() -> None:
    x = torch.empty(8, 64, 56, 56, **META).to(memory_format=torch.channels_last)
    weight = torch.empty(64, 64, 3, 3, **META)
    assert workspace_blocks("aten.conv2d", (x, weight), {}, torch.empty_like(x), "cudnn") == ()


def test_each_library_has_its_own_blocks() -> None:
    x, weight = torch.empty(8, 64, 56, 56, **META), torch.empty(64, 64, 3, 3, **META)
    found = workspaces("aten.conv2d", (x, weight), {}, torch.empty_like(x))
    assert set(found) == {"onednn", "cudnn"} and len(found["onednn"]) == 3
    storages = [Storage(1, 1, 5, "workspace", (5,), name) for name in found] + [
        Storage(1, 2, 7, "activations")
    ]
    assert [one.bytes for one in on_library(storages, "cudnn")] == [5, 7]
    assert [one.bytes for one in on_library(storages, "")] == [7]


def test_lines_add_up_to_value_and_bound() -> None:
    net = nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 64, 10)).to(
        "meta"
    )
    platform = PLATFORMS["nvidia"]
    step = training_lifetimes(net, (torch.empty(64, 16, 8, 8, **META),), platform=platform)
    found = training_memory(step, platform=platform)
    assert not found.assumed
    assert found.high_bytes == found.value_bytes + sum(
        one.high_bytes - one.value_bytes for one in found.lines
    )
    names = [one.name for one in found.lines]
    assert names == [
        "CUDA context",
        "CUDA kernels",
        "cuBLAS work space",
        "cuDNN work space",
        "cuDNN trials",
        "kept by the allocator",
    ]
    assert (found.lines[4].value_bytes, found.lines[4].high_bytes) == (0, 0)  # of memory that is free
    taken = found.framework_bytes + found.heap_bytes
    work = 2 * platform.product_bytes
    assert sum(one.value_bytes for one in found.lines if one.name != "cuDNN work space") == taken + work
    assert found.to_json()["lines"][0]["source"]


def test_a_pass_has_one_work_space_for_products_and_a_step_two() -> None:
    net, x = nn.Linear(8, 8, **META), torch.empty(4, 8, **META)
    platform = PLATFORMS["nvidia"]
    assert forward_memory(trace(net, (x,)), platform=platform).workspace_bytes == platform.product_bytes
    step = training_lifetimes(net, (x,), platform=platform)
    assert training_memory(step, platform=platform).workspace_bytes == 2 * platform.product_bytes


@pytest.mark.parametrize(
    ("name", "products", "taken"),
    [
        ("nvidia-h100-sxm5-80gb", 32 * MIB, 770 * MIB),
        ("nvidia-b200", 32 * MIB, 770 * MIB),
        ("nvidia-a100-pcie-40gb", 8320 * 1024, 1830 * MIB),
        ("nvidia-l40s", 8320 * 1024, 770 * MIB),
        ("nvidia-t4", 8320 * 1024, 770 * MIB),
    ],
)
def test_what_cuda_takes_depends_on_the_architecture(name: str, products: int, taken: int) -> None:
    platform = platform_of(spec_of(name).hardware())
    assert (platform.product_bytes, platform.framework.forward_bytes) == (products, taken)
    assert platform.name == "nvidia" and platform.margin("training") == 0


def test_other_makers_memory_stays_assumed() -> None:
    platform = platform_of(spec_of("amd-instinct-mi300x").hardware())
    found = forward_memory(trace(nn.Linear(8, 8, **META), (torch.empty(4, 8, **META),)), platform=platform)
    assert found.assumed and not found.lines and platform.margin("training") == 0.3


class Attention(nn.Module):
    """Self-attention of 4 heads, with a bias that is trained, or with dropout."""

    def __init__(self, biased: bool, dropout: float) -> None:
        super().__init__()
        self.inner, self.dropout = nn.Linear(32, 96), dropout
        self.bias = nn.Parameter(torch.empty(1, 4, 64, 64)) if biased else None

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.inner(x).view(*x.shape[:2], 3, 4, 8).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(query, key, value, self.bias, self.dropout)


@pytest.mark.parametrize(("biased", "dropout"), [(True, 0.0), (False, 0.1), (True, 0.1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fused_attention_keeps_no_scores_on_a_gpu(biased: bool, dropout: float, dtype: torch.dtype) -> None:
    with torch.device("meta"):
        net, x = Attention(biased, dropout).to(dtype), torch.empty(16, 64, 32, dtype=dtype)
    scores = 16 * 4 * 64 * 64 * dtype.itemsize
    steps = [training_lifetimes(net, (x,), platform=PLATFORMS[name]) for name in ("cpu", "nvidia")]
    cpu, gpu = (training_memory(step, platform=PLATFORMS["nvidia"]).tensor_bytes for step in steps)
    assert gpu < cpu - scores


def test_masks_of_truths_run_in_the_fused_kernel() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(32, 96)

        def forward(self, x: Tensor) -> Tensor:
            heads = self.inner(x).view(*x.shape[:2], 12, 8).transpose(1, 2)
            mask = torch.ones(1, 1, 16, 16, dtype=torch.bool, device=x.device).tril()
            query, key, value = heads.split((4, 4, 4), dim=1)
            return F.scaled_dot_product_attention(query, key, value, mask, 0.1)

    with torch.device("meta"):
        net, x = Masked(), torch.empty(8, 16, 32)
    step = training_lifetimes(net, (x,), platform=PLATFORMS["nvidia"])
    assert not [one for one in step.storages if one.bytes == 8 * 4 * 16 * 16 * 4]  # of scores


def test_a_captured_pass_has_its_activations_twice() -> None:
    net, x = nn.Sequential(nn.Linear(64, 64), nn.ReLU()).to("meta"), torch.empty(32, 64, **META)
    passes = trace(net, (x,))
    eager, graph = (
        forward_memory(passes, platform=PLATFORMS["nvidia"], run=run) for run in ("eager", "graph")
    )
    assert graph.value_bytes - eager.value_bytes == eager.activations_bytes > 0
    assert graph.high_bytes - eager.high_bytes == eager.activations_bytes
    assert graph.lines[-1].name == "CUDA graph's pool"
    assert forward_memory(passes, run="graph") == forward_memory(passes)  # a CPU captures nothing
