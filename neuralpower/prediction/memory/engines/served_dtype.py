"""The type in which an engine serves a checkpoint by default ("dtype auto"), by the type of its weights.

    vllm       float32 becomes the first type of the device that the model allows: bfloat16 from compute
               capability 8.0 on, else float16 (vllm/config/model.py, `_resolve_auto_dtype`; supported_dtypes
               of vllm/platforms/cuda.py)
    sglang     float32 becomes float16, of Gemma bfloat16 (sglang/srt/configs/model_config.py,
               `_get_and_verify_dtype`)
    llama.cpp  float32 becomes bfloat16 when it is converted (convert_hf_to_gguf.py, --outtype auto)

A device without bfloat16 serves such checkpoints in float16.
"""

from __future__ import annotations

from neuralpower.dtypes import HALF_BITS

VLLM, LLAMA_CPP = "vllm", "llama.cpp"
FULL, WIDE, HALF = "float32", f"bfloat{HALF_BITS}", f"float{HALF_BITS}"
NEVER_HALF = ("gemma2", "gemma3", "gemma3_text", "glm4")  # numbers of these leave the range of float16
GEMMA = "gemma"


def served_note(engine: str, served: str, published: str) -> str:
    """What an answer says of a type that the engine has chosen."""
    return f"{engine} serves it in {served} (dtype auto), not in {published}; --dtype {published} keeps that"


def served_dtype(engine: str, published: str, model_type: str, has_bfloat16: bool) -> str:
    """The type in which the engine serves weights of the `published` type on a device."""
    if engine == LLAMA_CPP:
        return WIDE if published == FULL else published
    if published == WIDE and has_bfloat16 or published not in (FULL, WIDE):
        return published
    if not has_bfloat16:
        return FULL if engine == VLLM and model_type in NEVER_HALF else HALF
    return WIDE if engine == VLLM or model_type.startswith(GEMMA) else HALF
