"""A single run in words."""

from __future__ import annotations

from collections.abc import Iterator

from neuralpower.suites.paradnn.formulas import FLOP_PER_WEIGHT, counted
from neuralpower.suites.paradnn.points import family_named
from neuralpower.suites.paradnn.result import SHORT, Result


def single_text(result: Result) -> str:
    """Version, hyper-parameters, Duration and TFLOPS, each on a line; FLOP are 2 per multiply-add."""
    return "\n".join(_lines(result))


def _lines(result: Result) -> Iterator[str]:
    point, setup = result.point, result.setup
    family = family_named(point.family)
    yield f"predictor: {setup.predictor}" if setup.predictor else f"torch: {result.torch}"
    yield f"device: {result.machine}"
    arithmetic = [SHORT[setup.dtype], *(["AMP"] if setup.amp else []), *(["TF32"] if setup.tf32 else [])]
    yield f"input_type: {' '.join(arithmetic)}"
    yield f"mode: {setup.mode}" + (f", optimizer: {setup.optimizer}" if setup.mode == "train" else "")
    yield f"{family.selects}: {point.kind}"
    for name, size in point.named.items():
        yield f"{name}: {size}"
    work = counted(point)
    yield f"parameters: {work.parameters:,}; {work.weights:,} without biases and norms"
    if result.phi is not None:
        more = f"{work.weights / result.phi - 1:+.1%}" if work.weights != result.phi else "the same"
        yield f"Phi: {result.phi:,} by the paper's formula; as built {more}"
    if result.formula_flops is not None:
        yield f"FLOP of a step by formula: {result.formula_flops:,} ({FLOP_PER_WEIGHT[setup.mode]} Phi bs)"
    yield f"FLOP of a step as counted: {result.counted_flops:,}"
    yield f"Duration: {result.duration_s:.6g} s ({result.steps} steps after {result.warmup_steps})"
    if result.coverage is not None:
        yield f"Coverage: {result.coverage:.1%} of the time is learnt, the rest a roofline estimate"
    if result.peak_memory_bytes is not None:
        yield f"Peak memory: {result.peak_memory_bytes / 1e9:.3f} GB"
    yield f"TFLOPS: {(result.flops_per_s or 0) / 1e12:.6g}" + (
        " (by formula)" if result.formula_flops else " (counted)"
    )
    if result.formula_flops is not None:
        yield f"TFLOPS as counted: {(result.counted_flops_per_s or 0) / 1e12:.6g}"
