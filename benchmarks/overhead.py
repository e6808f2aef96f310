"""The cost of a profile, and the share of time that its rows explain: `python -m benchmarks.overhead`.

Times are CPU time on one thread, so that other tenants of the machine do not count.
"""

from __future__ import annotations

import time

import numpy as np
import torch

from neuralpower.measure.cpu.timer import prepare_process
from neuralpower.measure.meters import NullMeter
from neuralpower.networks.sources import InputRequest, resolve
from neuralpower.profiling.steps import Settings, Step, prepared, repeat
from neuralpower.profiling.stopwatch import HostClock
from neuralpower.trace.tracer import trace

NETWORKS = (("zoo:resnet50", None), ("transformers:BertModel", 128), ("zoo:mobilenet_v2", None))


class CpuClock(HostClock):
    """CPU time of this process."""

    def mark(self) -> int:
        """Nanoseconds."""
        return time.process_time_ns()


def main() -> None:
    """Print a Markdown table."""
    prepare_process(1)
    print("| network | phase | clean (ms) | timed / clean | all runs / clean ones | rows / clean |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    for name, seq_len in NETWORKS:
        source = resolve(name)
        model = source.build("cpu")
        inputs = source.inputs(model, InputRequest(seq_len=seq_len))
        calls = trace(model, inputs.args, inputs.kwargs).every_call
        for phase in ("forward", "training"):
            whole = frozenset((call.path, call.operator) for call in calls) if phase == "forward" else None
            step = Step(model.train(phase == "training"), inputs.args, inputs.kwargs, phase)
            with prepared(step, torch.device("cpu"), 0):
                runs = repeat(step, CpuClock(), whole, Settings(warmup=1, repeat=6), NullMeter("not_asked"))
            clean, timed = runs.clean[""], runs.timed
            median = clean.quantile(0.5)
            factor = 1 + runs.instrumentation_s / median
            n = len(clean.samples_s), len(timed.samples_s)
            rows = float(np.median([sum(run.seconds) for run in runs.repeats]))
            print(
                f"| {name.partition(':')[2]} | {phase} | {median * 1e3:.0f} | {factor:.2f} | "
                f"{(n[0] + n[1] * factor) / sum(n):.2f} | {rows / median:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
