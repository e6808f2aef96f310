"""What a kernel without an operator does, by its name: the library or the kind, never nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence

COMMUNICATION = "communication"
COPIES = {"HtoD": "copies from the host", "DtoH": "copies to the host", "DtoD": "copies", "PtoP": "copies"}
KINDS: Sequence[tuple[str, str]] = (
    # first that matches; libraries before kinds
    (r"nccl|rccl|all_?reduce|all_?gather|reduce_?scatter|cross_device_reduce|sendrecv", COMMUNICATION),
    (r"memset", "fills"),
    (r"^triton_|^_?_?triton", "Triton (Inductor)"),
    (r"flash|fmha|attn|attention|mha_|unified_attention|mla_", "attention"),
    (r"moe|topk_?softmax|routing|_matmul_ogs|grouped_gemm|expert", "mixture of experts"),
    (r"split_embedding|fbgemm|jagged|recat_", "fbgemm"),
    (r"^cijk_|tensile|hipblas", "product (Tensile)"),
    (r"gemm|cutlass|nvjet|xmma|_mma|matmul|^sm\d+_|ampere_|volta_|hopper_|cublas|split_?k", "product"),
    (r"conv|implicit_|winograd|igemm|cudnn|miopen", "convolution"),
    (r"norm", "norm"),
    (r"multi_tensor_apply", "optimizer"),
    (r"rope|rotary", "rotary positions"),
    (r"quant|fp8|mxfp|per_token", "quantisation"),
    (r"reshape_and_cache|cache|paged", "cache of keys and values"),
    (r"softmax", "softmax"),
    (r"act_and_mul|silu|gelu|swiglu", "activation"),
    (r"embedding|gather|index", "gather"),
    (r"sort|cub::|rocprim|thrust", "sort and scan"),
    (r"at::native|at_cuda", "PyTorch"),
)
NAME = re.compile(r"[A-Za-z_][\w:]*")


def kernel_kind(name: str) -> str:
    """The library or kind of a kernel; the first word of its name where none is known."""
    for copy, kind in COPIES.items():
        if copy in name:
            return kind
    for pattern, kind in KINDS:
        if re.search(pattern, name, re.IGNORECASE):
            return kind
    words = NAME.search(name.removeprefix("void "))
    return (words[0] if words else name)[:60] or "without a name"
