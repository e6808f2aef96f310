"""Check options that are given by name, and suggest the right name for others."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from neuralpower.errors import InputError, unknown

# what other tools call an option -> its name here
ALIASES = {
    **dict.fromkeys(("batch", "batchsize", "bs", "batch_sizes"), "batch_size"),
    **dict.fromkeys(("seq", "seqlen", "seq_length", "sequence_length", "length", "lengths"), "seq_len"),
    **dict.fromkeys(("input_size", "shape", "input_data"), "input_shape"),
    **dict.fromkeys(("precision", "torch_dtype", "data_type", "dtypes"), "dtype"),
    **dict.fromkeys(("quantization", "quantize", "quant", "weight_dtype"), "weights"),
    **dict.fromkeys(("gpu", "hardware", "accelerator", "target"), "device"),
    **dict.fromkeys(("mode", "backend"), "run"),
    **dict.fromkeys(("optimizer", "accumulation", "checkpointing", "master_weights"), "recipe"),
}
PLURAL = {"batch_size": "batch_sizes", "seq_len": "lengths", "dtype": "dtypes"}  # of a sweep
PHASES = {"context": "decode", "prompt": "prefill", "new_tokens": "generate"}  # fields of a phase


def check_options(of: str, given: Mapping[str, object], known: Collection[str]) -> None:
    """Raise InputError for an unknown name, with the most likely one."""
    for name in given:
        if name not in known:
            raise _unknown(of, name, known)


def _unknown(of: str, name: str, known: Collection[str]) -> InputError:
    meant = ALIASES.get(name.lower())
    meant = PLURAL.get(meant or name, meant) if "batch_sizes" in known else meant
    if meant in known:
        return InputError(f"unknown {of} {name!r}: did you mean {meant}?")
    if name in PHASES and "phase" in known:
        phase = PHASES[name]
        return InputError(f"unknown {of} {name!r}: write phase=neuralpower.Phase.{phase}({name}=...)")
    return unknown(of, name, known)
