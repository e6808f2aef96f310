"""Predicted against real memory peaks on this CPU: every network in fresh processes, forward and in training.

    tensors    weights, gradients, optimizer, cache, inputs and activations at their peak
    predicted  with work space of kernels, what the framework takes and what glibc's heap keeps
    real       largest resident memory of a fresh process over three passes or steps, less what it had when
               torch and the network's classes were imported; the median where it ran more than once
    without heap  predicted, less what the heap keeps
    needed     the same as real where freed memory is given back at once (MALLOC_MMAP_THRESHOLD_)

python -m benchmarks.memory [PART OF A NAME] [--again] [--recorded]
    runs what is not in memory.json; --again adds a run to each, with --recorded nothing is run
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from neuralpower.layers.base import FORWARD
from neuralpower.networks.decoder import pass_of
from neuralpower.networks.phases import DECODE, PREFILL, Phase
from neuralpower.networks.sources import InputRequest, resolve
from neuralpower.prediction.memory.peak import Memory, forward_memory, training_memory
from neuralpower.trace.recipe import RECIPE, TRAINING, Recipe
from neuralpower.trace.steps.step_lifetimes import training_lifetimes
from neuralpower.trace.tracer import trace

NEEDED, KEPT = "needed", "kept"
HEAPS: dict[str, dict[str, str]] = {
    KEPT: {},  # as it comes: holes between what lives are kept
    NEEDED: {
        "MALLOC_MMAP_THRESHOLD_": "131072",
        "MALLOC_TRIM_THRESHOLD_": "131072",
    },  # what is freed is given back
}
RECORD = Path(__file__).with_suffix(".json")
GPT2 = "transformers:GPT2LMHeadModel"
LLAMA = (
    "transformers:llama?num_hidden_layers=4&hidden_size=1024&intermediate_size=2816&num_attention_heads=16"
)
MIXTRAL = (
    "transformers:mixtral?num_hidden_layers=4&hidden_size=512&intermediate_size=1024&num_attention_heads=8"
    "&num_key_value_heads=4&num_local_experts=8&vocab_size=16000"
)
NETWORKS = (
    ("transformers:bert", 4, 128),
    ("transformers:gpt2", 2, 128),
    (GPT2, 1, 128),
    ("transformers:distilbert", 8, 128),
    (LLAMA, 1, 512),
    (MIXTRAL, 2, 128),
    ("transformers:t5", 2, 128),
    ("transformers:vit", 4, None),
    ("transformers:swin", 2, None),
    ("transformers:convnext", 2, None),
    ("transformers:albert?hidden_size=768&intermediate_size=3072&num_attention_heads=12", 2, 64),
    ("zoo:shufflenet_v2", 8, None),
    ("zoo:squeezenet", 8, None),
    ("zoo:mobilenet_v2", 4, None),
    ("zoo:resnet18", 8, None),
    ("zoo:googlenet", 4, None),
    ("zoo:densenet121", 2, None),
    ("zoo:efficientnet_b0", 2, None),
    ("zoo:resnet50", 4, None),
    ("zoo:resnext50", 2, None),
    ("zoo:inception3", 2, None),
    ("zoo:lstm_language_model", 4, None),
    ("zoo:alexnet", 16, None),
    ("zoo:vgg11", 2, None),
    ("zoo:unet", 1, None),
    ("zoo:video_cnn", 2, None),
)
SERVED = (
    (LLAMA, 4, 2000, DECODE),
    (LLAMA, 1, 1024, PREFILL),
    (GPT2, 1, 1000, DECODE),
    (GPT2, 2, 512, PREFILL),
)
RECIPES = (
    (LLAMA, 1, 256, Recipe(accumulation=4)),
    ("zoo:resnet18", 4, None, Recipe(accumulation=4)),
    ("transformers:bert?num_hidden_layers=6&vocab_size=2000", 4, 256, Recipe(checkpointing=True)),
    ("zoo:mobilenet_v2", 4, None, Recipe(optimizer="sgd")),
)

UNSEEN = (  # of families that nothing was chosen by, measured once
    ("transformers:roberta", 3, 96),
    ("transformers:electra", 6, 128),
    ("transformers:mpnet", 2, 200),
    ("transformers:opt?num_hidden_layers=6", 2, 160),
    ("transformers:bloom?hidden_size=768&n_layer=6&n_head=12&vocab_size=30000", 2, 128),
    (
        "transformers:gpt_neox?num_hidden_layers=6&hidden_size=768&intermediate_size=3072"
        "&num_attention_heads=12",
        4,
        64,
    ),
    ("transformers:deit", 3, None),
    ("transformers:segformer", 2, None),
    ("transformers:regnet", 3, None),
    ("transformers:levit", 8, None),
    ("zoo:mnasnet", 6, None),
    ("zoo:vgg16", 1, None),
)


@dataclass(frozen=True)
class Run:
    """One network in one phase."""

    model: str
    batch: int
    length: int | None
    phase: str
    recipe: Recipe = RECIPE

    @property
    def label(self) -> str:
        """Short and unlike any other's."""
        recipe = f" {self.recipe}" if self.recipe != RECIPE else ""
        name = self.model.partition("?")[0].partition(":")[2]
        return f"{name} b{self.batch}{f' s{self.length}' if self.length else ''} {self.phase}{recipe}"

    def predicted(self) -> Memory:
        """What is said of it without running it."""
        source = resolve(self.model)
        asked = {DECODE: Phase.decode(context=self.length), PREFILL: Phase.prefill(self.length)}.get(
            self.phase, Phase()
        )
        request = InputRequest(self.batch, self.length if asked == Phase() else None)
        one = pass_of(source, request, asked)
        args, kwargs = one.inputs.args, one.inputs.kwargs
        if self.phase == TRAINING:
            return training_memory(training_lifetimes(one.module, args, kwargs, recipe=self.recipe))
        return forward_memory(trace(one.module, args, kwargs))


RUNS = (
    *(Run(model, batch, length, phase) for model, batch, length in NETWORKS for phase in (FORWARD, TRAINING)),
    *(Run(model, batch, length, phase) for model, batch, length, phase in SERVED),
    *(Run(model, batch, length, TRAINING, recipe) for model, batch, length, recipe in RECIPES),
)
FURTHER = tuple(
    Run(model, batch, length, phase) for model, batch, length in UNSEEN for phase in (FORWARD, TRAINING)
)


def real(run: Run, heap: str) -> int | None:
    """Bytes at the peak of a fresh process; None where it failed."""
    length = None if run.phase == DECODE else run.length
    given = [run.model, run.batch, length, run.phase, run.length, asdict(run.recipe)]
    command = [sys.executable, "-m", "benchmarks.memory_run", json.dumps(given)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "PASSIVE", **HEAPS[heap]}
    found = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=False)
    return int(found.stdout) if found.returncode == 0 else None


def recorded(runs: Sequence[Run], heap: str, again: bool) -> None:
    """Run what is missing, and keep its real bytes in the record at once."""
    for run in runs:
        known = record()
        sizes = known.setdefault(run.label, {}).setdefault(heap, [])
        if (sizes and not again) or (size := real(run, heap)) is None:
            continue
        sizes.append(size)
        print(f"{run.label}, {heap}: {size / 1e6:.1f} MB", file=sys.stderr, flush=True)
        RECORD.write_text(json.dumps(known, indent=1) + "\n")


def record() -> dict[str, dict[str, list[int]]]:
    """Label -> heap -> real bytes of every process."""
    known: dict[str, dict[str, list[int]]] = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    return known


def main() -> None:
    """Print the tables, then the errors by phase."""
    options = {argument for argument in sys.argv[1:] if argument.startswith("--")}
    wanted = [argument for argument in sys.argv[1:] if argument not in options]
    for title, runs in (("", RUNS), ("of families that nothing was chosen by", FURTHER)):
        some = [run for run in runs if all(part in run.label for part in wanted)]
        if title:
            print(f"\n{title}\n")
        for heap in () if "--recorded" in options else (KEPT,) if title else HEAPS:
            recorded(some, heap, "--again" in options)
        table(some)


def table(runs: Sequence[Run]) -> None:
    """Print a line for every run, then the errors by phase."""
    known = record()
    print(
        "| MB | tensors | predicted | real | error | without heap | needed | high "
        "|\n|---|---|---|---|---|---|---|---|"
    )
    errors: dict[str, list[float]] = {}
    before: dict[str, list[float]] = {}
    above = []
    for run in runs:
        sizes = {
            heap: int(statistics.median(some)) for heap, some in known.get(run.label, {}).items() if some
        }
        if KEPT not in sizes:
            continue
        memory, kept = run.predicted(), sizes[KEPT]
        error = memory.value_bytes / kept - 1
        errors.setdefault(run.phase, []).append(error)
        before.setdefault(run.phase, []).append(memory.needed_bytes / kept - 1)
        if max(kept, sizes.get(NEEDED, 0)) > memory.high_bytes:
            above.append(run.label)
        cells: list[str | int | None] = [memory.tensor_bytes, memory.value_bytes, kept, f"{error:+.1%}"]
        cells += [memory.needed_bytes, sizes.get(NEEDED), memory.high_bytes]
        shown = (c if isinstance(c, str) else "" if c is None else f"{c / 1e6:.1f}" for c in cells)
        print(f"| {run.label} | {' | '.join(shown)} |", flush=True)
    for made, named in ((errors, ""), (before, ", without heap")):
        for phase, some in {**made, "all": [error for each in made.values() for error in each]}.items():
            if some:
                print(f"\n{phase}{named}: {_spread(some)}")
    print(f"\nreal beyond high: {', '.join(above) or 'none'}")


def _spread(errors: Sequence[float]) -> str:
    distances = [abs(error) for error in errors]
    return (
        f"{len(errors)} runs, median error {statistics.median(distances):.1%}, from {min(errors):+.1%} to "
        f"{max(errors):+.1%}, within 5 %: {sum(distance <= 0.05 for distance in distances)}"
    )


if __name__ == "__main__":
    main()
