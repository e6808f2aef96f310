"""Whole networks in bfloat16 on a GPU, predicted and measured: kernels' time and eager time.

python -m benchmarks.gpu_networks [--predictor NAME] [--by-kind]   # against gpu_networks.json, no GPU needed
python -m benchmarks.gpu_networks --measure FILE [--device cuda:0] # on a machine with a GPU: writes FILE

`busy` is the sum of all kernels' times in one pass, as torch's profiler reads them; `eager` is the time
between events around the pass, with the host's launches. Each is the median of seven passes after three.
gpu_networks_operators.json has the time of each operator and shape in the same passes; gpu_memory.json has
peaks of training on the same GPU.
"""

from __future__ import annotations

import argparse
import inspect
import json
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

MEASURED = Path(__file__).with_suffix(".json")
DTYPE = "bfloat16"
WARMUPS, REPEATS = 3, 7


def cases() -> list[dict[str, Any]]:
    """What is measured: model, batch size, and the phase with its numbers."""
    found: list[dict[str, Any]] = json.loads(MEASURED.read_text())["networks"]
    return found


def measured(case: dict[str, Any], device: str) -> dict[str, Any]:
    """The case with its times and its memory on a CUDA device."""
    import torch

    event: Any = torch.cuda.Event
    run = _call(case, device)
    cuda = torch.device(device)
    with torch.inference_mode():
        for _ in range(WARMUPS):
            run()
        torch.cuda.synchronize(cuda)
        torch.cuda.reset_peak_memory_stats(cuda)
        times = []
        for _ in range(REPEATS):
            start, end = (event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize(cuda)
            start.record()
            run()
            end.record()
            torch.cuda.synchronize(cuda)
            times.append(start.elapsed_time(end))
        peak, reserved = torch.cuda.max_memory_allocated(cuda), torch.cuda.max_memory_reserved(cuda)
        busy_us, kernels = _busy(run, cuda)
    given: dict[str, Any] = {
        name: case[name] for name in ("model", "batch", "seq_len", "phase", "context") if name in case
    }
    figures: dict[str, Any] = {
        "eager_ms": round(statistics.median(times), 4),
        "busy_ms": round(busy_us / 1e3, 4),
        "kernels": kernels,
    }
    return {**given, **figures, "peak_bytes": peak, "reserved_bytes": reserved}


def _call(case: dict[str, Any], device: str) -> Callable[[], Any]:
    """The pass, ready to be run on the device again and again."""
    import torch

    from neuralpower.layers.base import torch_dtype
    from neuralpower.networks.caches import CACHES, cache_of
    from neuralpower.networks.sources import InputRequest, resolve

    source, dtype = resolve(case["model"]), torch_dtype(DTYPE)
    if case["phase"] == "forward":
        return source.call(InputRequest(case["batch"], case.get("seq_len"), None, dtype), device)
    model: Any = source.build(device, dtype).eval()
    vocabulary = model.config.get_text_config().vocab_size
    length = case.get("seq_len") or case["context"]
    prompt = torch.randint(0, vocabulary, (case["batch"], length), device=device)
    if case["phase"] == "prefill":
        return lambda: model(input_ids=prompt, use_cache=True, logits_to_keep=1)
    with torch.inference_mode():
        output = model(input_ids=prompt, use_cache=True, logits_to_keep=1)
    name = next(name for name in CACHES if name in inspect.signature(model.forward).parameters)
    cache = cache_of(output)

    def step() -> None:
        model(input_ids=prompt[:, :1], use_cache=True, **{name: cache})
        cache.crop(length)

    return step


def _busy(run: Callable[[], Any], device: Any) -> tuple[float, int]:
    """(microseconds of all kernels and copies, their number) of one pass."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        run()
        torch.cuda.synchronize(device)
    kernels = [event for event in seen.key_averages() if event.device_type.name == "CUDA"]
    return sum(event.self_device_time_total for event in kernels), sum(event.count for event in kernels)


def predicted(case: dict[str, Any], predictor: Any) -> Any:
    """The prediction of the case, run as eager PyTorch runs it."""
    from neuralpower.networks.phases import Phase

    sizes: dict[str, Any] = {"batch_size": case["batch"], "dtype": DTYPE}
    if case["phase"] == "decode":
        phase = Phase.decode(context=case["context"])
        return predictor.predict(case["model"], phase=phase, run="eager", **sizes)
    length = case.get("seq_len")
    return predictor.predict(case["model"], phase=case["phase"], seq_len=length, run="eager", **sizes)


def name_of(case: dict[str, Any]) -> str:
    """The model's short name with its numbers."""
    model = case["model"].partition(":")[2].partition("?")[0]
    numbers = {"b": case["batch"], "s": case.get("seq_len"), "context ": case.get("context")}
    return " ".join([model, case["phase"], *(f"{k}{v}" for k, v in numbers.items() if v is not None)])


def lines(predictor: Any, by_kind: bool) -> Iterator[str]:
    """One table row per network, then the errors' summary."""
    errors, peaks, inside = [], [], 0
    for case in cases():
        one = predicted(case, predictor)
        busy_ms = sum(row.runtime_s for row in one.rows) * 1e3
        scale = busy_ms / one.runtime_s.value  # the whole may wait for the host, its bounds are as wide
        error = busy_ms / case["busy_ms"] - 1
        errors.append(error)
        memory = one.memory
        peaks.append(abs((memory.needed_bytes - memory.framework_bytes) / case["peak_bytes"] - 1))
        inside += one.runtime_s.low * scale <= case["busy_ms"] <= one.runtime_s.high * scale
        yield (
            f"| {name_of(case)} | {case['kernels']} | {case['busy_ms']:.2f} | {busy_ms:.2f} "
            f"| {error:+.1%} | {case['eager_ms']:.2f} | {one.coverage:.1%} |"
        )
        if by_kind:
            kinds = {row.kind: round(row.runtime_s * 1e3, 3) for row in one.by_kind()}
            yield f"| {json.dumps(kinds)} | | | | | | |"
    sizes = [abs(error) for error in errors]
    yield (
        f"\n{len(sizes)} networks: median {statistics.median(sizes):.1%}, mean {statistics.mean(sizes):.1%}, "
        f"{inside} inside their 90 % bounds; bytes allocated at the peak: "
        f"median {statistics.median(peaks):.1%}, at most {max(peaks):.1%}"
    )


def main() -> None:
    """Measure, or print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--measure", type=Path, metavar="FILE", help="measure here, and write this file")
    parser.add_argument("--device", default="cuda:0", help="where to measure")
    parser.add_argument("--predictor", help="name or file; all that is known of the device by default")
    parser.add_argument("--by-kind", action="store_true", help="print each kind's share, too")
    given = parser.parse_args()
    about = json.loads(MEASURED.read_text())
    if given.measure is not None:
        import torch

        found = [measured(case, given.device) for case in about["networks"]]
        software = {"torch": torch.__version__, "gpu": torch.cuda.get_device_name(given.device)}
        given.measure.write_text(json.dumps({**software, "networks": found}, indent=1) + "\n")
        return
    import neuralpower
    from benchmarks.gpu_runs import predictor_of

    predictor = neuralpower.load(given.predictor) if given.predictor else predictor_of(about["predictor"])
    print(f"{about['gpu']}, torch {about['torch']}, {DTYPE}; predicted by {predictor.name}\n")
    print("| network | kernels | busy, ms | predicted, ms | error | eager, ms | coverage |")
    print("|---|---|---|---|---|---|---|")
    for line in lines(predictor, given.by_kind):
        print(line, flush=True)


if __name__ == "__main__":
    main()
