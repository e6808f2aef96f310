"""`neuralpower fit`: whether a network fits into a memory, and the largest batch and context that do."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Exit, Option, Typer

from neuralpower.cli import parsing, shared_options
from neuralpower.cli.answers import answered
from neuralpower.cli.choices import FITTED_PHASES, optimizer_choice
from neuralpower.cli.commands import OptionGroup, examples, with_options
from neuralpower.cli.engine_options import Engine
from neuralpower.cli.formats import Answer, check_out, form_of, give
from neuralpower.cli.output import VERBOSE, level
from neuralpower.cli.panels import INPUT, LANGUAGE, TARGET, TRAINING
from neuralpower.cli.parallel_options import Parallel
from neuralpower.devices.cluster import is_cluster
from neuralpower.devices.memory_size import bytes_of, is_size
from neuralpower.errors import InputError
from neuralpower.files.stages import stage

if TYPE_CHECKING:
    from neuralpower.platforms import Platform
    from neuralpower.prediction.explore import fit as fitting
    from neuralpower.prediction.memory.over_time import Lived

app = Typer()


class FittedTokens(OptionGroup):
    """The tokens of a language model's phase, whose memory holds the cache."""

    panel = LANGUAGE

    context: shared_options.Context = None
    prompt: shared_options.Prompt = None
    new_tokens: shared_options.NewTokens = None


class Fit(OptionGroup):
    """A network, and the memory that it is to fit into."""

    panel = INPUT

    model: shared_options.Model
    phase: Annotated[str, shared_options.phase_choice(FITTED_PHASES, "Phase to predict")] = "forward"
    batch_size: shared_options.BatchSize = None
    seq_len: Annotated[int | None, Option(help="Tokens per sample.")] = None
    input_shape: shared_options.InputShape = None
    dtype: shared_options.OwnDtype = None
    weights: shared_options.Weights = None
    device: shared_options.FittedDevice = None
    memory: Annotated[
        str | None,
        Option(
            help="Instead of the device's: 24GiB (as of a 24 GB card), or 24GB; without --device of an "
            "accelerator.",
            rich_help_panel=TARGET,
        ),
    ] = None
    margin: Annotated[
        float | None,
        Option(
            help="Share of the memory to keep free; default: 0 on CPUs and NVIDIA GPUs, on others 0.3 in "
            "training, else 0.1.",
            rich_help_panel=TARGET,
        ),
    ] = None
    run: shared_options.Run = None
    tokens: FittedTokens
    optimizer: Annotated[
        str,
        optimizer_choice(
            "Optimizer: adamw, adamw:fused, sgd, momentum (sgd with it), adafactor, muon, ...",
            rich_help_panel=TRAINING,
        ),
    ] = "adamw"
    optimizer_states: Annotated[
        str | None,
        Option(
            help="Numbers that an optimizer of any other name keeps per parameter: 2, or 2:bfloat16.",
            rich_help_panel=TRAINING,
        ),
    ] = None
    autocast: shared_options.Autocast = None
    master_weights: shared_options.MasterWeights = False
    lora: shared_options.Lora = None
    accumulation: Annotated[int, Option(help="Micro-batches in a step.", rich_help_panel=TRAINING)] = 1
    checkpointing: Annotated[
        bool,
        Option(
            "--checkpointing",
            help="Recompute blocks instead of keeping activations.",
            rich_help_panel=TRAINING,
        ),
    ] = False
    serving: Engine
    parallel: Parallel
    output: shared_options.Output
    memory_picture: shared_options.MemoryPicture = None
    no_cache: shared_options.NoCache = False


@app.command(
    epilog=examples(
        "neuralpower fit llama-3.1-8b --phase decode --context 8192 --device rtx-4090",
        "neuralpower fit transformers:gpt2 --phase training --seq-len 512 --memory 8GB",
        "neuralpower fit llama-3.1-8b --device l40s --engine vllm --max-model-len 8192",
    )
)
@with_options
def fit(asked: Fit) -> None:
    """Compare the memory that a model needs with the device's; exit code 1 where it does not fit."""
    form = form_of(asked.output.form, asked.output.out, asked.output.as_json)
    parsing.check_batch_size(asked.batch_size)
    if asked.memory is not None:
        bytes_of(asked.memory)  # refused before torch is imported
    _target(asked)[2].check(asked.model)
    if asked.no_cache or asked.output.out is not None or asked.memory_picture is not None:
        _fit(asked, form)
    else:
        answered(asked.model, {"command": "fit", **vars(asked)}, lambda: _fit(asked, form))


def _fit(asked: Fit, form: str) -> None:
    """Find the answer and print it; raises Exit where the model does not fit."""
    shape, length = parsing.shape(asked.input_shape), _prompt(asked)
    device, memory, spread, note = _target(asked)
    stage("importing torch and transformers")
    from neuralpower.prediction.explore.fit import fit as fitted
    from neuralpower.prediction.explore.fit_request import Request
    from neuralpower.prediction.explore.verdict import DOES_NOT_FIT
    from neuralpower.report.explored import fit_table
    from neuralpower.trace.question import usual_run
    from neuralpower.trace.recipe import Recipe

    check_out(asked.output.out, form)
    parsing.check_memory_picture(asked.memory_picture, spread.layout.alone)
    room, platform, name = _room(spread.device(device), memory)
    same = "model phase optimizer optimizer_states master_weights autocast lora checkpointing margin weights"
    request = Request(
        batch_size=parsing.batch_size(asked.model, asked.batch_size, shape),
        seq_len=length,
        context=asked.tokens.context,
        new_tokens=asked.tokens.new_tokens,
        input_shape=shape,
        dtype=parsing.dtype(asked.dtype or parsing.usual_dtype(asked.model)),
        published=asked.dtype is None,
        platform=platform,
        run=asked.run or usual_run(platform, asked.phase),
        accumulation=spread.recipe(Recipe(accumulation=asked.accumulation), asked.phase).accumulation,
        layout=spread.layout,
        cluster=spread.cluster,
        require_plan=spread.require_plan,
        engine=asked.serving.asked(name, room),
        **{field: getattr(asked, field) for field in same.split()},
    )
    passes: list[Lived] = []
    found = fitted(request, room, passes.append if asked.memory_picture is not None else None)
    if asked.memory_picture is not None:
        _draw(passes, found, asked.memory_picture)
    found = dataclasses.replace(
        found, notes=(*found.notes, *parsing.memory_notes(memory), *filter(None, [note]))
    )
    shown = found.to_json()
    detailed = level() >= VERBOSE
    plain = (str, int, float, type(None))
    flat = {n: value for n, value in shown.items() if n != "schema" and isinstance(value, plain)}
    answer = Answer(
        title=f"{asked.model}: {found.verdict}",
        table=lambda: fit_table(found, request, name, marked=True, detailed=detailed),
        json=lambda: shown,
        rows=lambda: [[*flat], [*flat.values()]],
        shown=lambda: [["figure", "value"], *([name, value] for name, value in flat.items())],
        lead=lambda: fit_table(found, request, name).splitlines(),
    )
    give(answer, form, asked.output.out)
    if found.verdict == DOES_NOT_FIT:
        raise Exit(1)


def _draw(passes: Sequence[Lived], found: fitting.Fit, path: Path) -> None:
    """Draw the memory over time of the pass with the highest peak."""
    from neuralpower.prediction.memory.over_time import fullest
    from neuralpower.report.memory_pictures import write_memory

    if not passes:
        raise InputError(
            f"--memory-picture {path}: no pass was followed on one device; leave --memory-picture out"
        )
    write_memory(fullest(passes), found.memory, path)


def _prompt(asked: Fit) -> int | None:
    """The tokens of a sample: --seq-len, or --prompt of a prefill and a generation; raises InputError."""
    prompt, length = asked.tokens.prompt, asked.seq_len
    if prompt is not None and asked.phase not in ("prefill", "generate"):
        raise InputError(
            f"--prompt {prompt} belongs to --phase prefill or generate, not to {asked.phase}; leave it out"
        )
    if prompt is not None and length not in (None, prompt):
        raise InputError(
            f"--prompt {prompt} and --seq-len {length} both are the prompt's length; leave one out"
        )
    return length if prompt is None else prompt


def _target(asked: Fit) -> tuple[str | None, str | None, Parallel, str]:
    """(device, memory, several devices, note): --device may be a memory or several devices.

    Several devices without a layout get the usual one, and a note. Raises InputError for two that contradict.
    """
    device, memory, spread = asked.device, asked.memory, asked.parallel
    if device is not None and is_size(device):
        if memory is not None:
            raise InputError(f"--device {device} and --memory {memory} both are a size; leave one out")
        device, memory = None, device
    elif device is not None and is_cluster(device):
        if spread.devices is not None:
            spread.device(device)  # raises: both name devices
        device, spread = None, Parallel(**{**vars(spread), "devices": device})
    cluster = spread.cluster
    if cluster is None or cluster.devices == 1 or not spread.layout.alone:
        return device, memory, spread, ""
    layout = cluster.usual_layout(asked.phase == "training")
    degrees = {f"{degree}_parallel": getattr(layout, degree) for degree in ("tensor", "pipeline", "data")}
    spread = Parallel(**{**vars(spread), **degrees, "zero": layout.shard.removeprefix("zero") or None})
    others = f"neuralpower parallel {asked.model} --devices {spread.devices}"
    return device, memory, spread, f"no layout is given: {layout} is assumed. Others: {others}"


def _room(device: str | None, memory: str | None) -> tuple[float, Platform, str]:
    """(bytes, platform, name) of what the model is to fit into; raises InputError."""
    from neuralpower.devices.host import read_cpu
    from neuralpower.devices.spec import spec_of
    from neuralpower.measure import target
    from neuralpower.platforms import CPU, platform_of
    from neuralpower.prediction.explore.fit import assumed

    own: float | None
    if device is None and memory is not None:
        platform, name = assumed(memory)
        return bytes_of(memory), platform, f"{name} (assumed; this machine: --device cpu)"
    named = target(device)
    if named is None:
        cpu = read_cpu()
        own, platform, name = cpu.memory_bytes, CPU, cpu.name
    else:
        spec = spec_of(str(named))
        own, platform, name = spec.get("memory_bytes"), platform_of(spec.hardware()), spec.name
    if memory is not None:
        return bytes_of(memory), platform, name if named else f"{platform.called} of {memory}"
    if own is None:
        raise InputError(f"{name}: its memory is not known; give --memory, such as 24GB")
    return float(int(own)), platform, name
