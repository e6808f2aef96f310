"""`neuralpower traffic`: what users wait for at a rate, and the highest rate that keeps a promise."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option, Typer

from neuralpower.ask import texts
from neuralpower.ask.options import Sizes, Trained
from neuralpower.ask.output import Output
from neuralpower.ask.panels import ENGINE, INPUT, OUTPUT, SEVERAL, TARGET
from neuralpower.ask.words import SCHEDULERS
from neuralpower.cli import parsing
from neuralpower.cli.choices import choice
from neuralpower.cli.commands import Model, OptionGroup, examples, flag, with_options
from neuralpower.cli.formats import Answer, check_out, form_of, give
from neuralpower.devices.cluster import cluster_of
from neuralpower.devices.layout import Layout
from neuralpower.errors import InputError
from neuralpower.files.stages import stage

if TYPE_CHECKING:
    from neuralpower.serving.traffic import Deployment, Target
    from neuralpower.serving.workload import Workload

app = Typer()

LINK = re.compile(r"(\d+(?:\.\d+)?)\s*(GB/s|GiB/s|MB/s)")
UNITS = {"GB/s": 1e9, "GiB/s": 2.0**30, "MB/s": 1e6}


class Traffic(OptionGroup):
    """Options: the model, its devices, the requests, and the promise."""

    panel = INPUT
    panels = {
        TARGET: "device predictor link",
        SEVERAL: "tensor_parallel expert_parallel replicas",
        ENGINE: "engine block_size cache_dtype gpu_memory_utilization max_num_batched_tokens max_num_seqs "
        "prefix_hit synchronous",
        OUTPUT: "curve",
    }

    model: Model
    device: Annotated[str, Option(metavar="<[Nx]DEVICE>", help="Devices of one replica: l40s, 2xh100-sxm.")]
    rate: Annotated[float | None, Option(help="Requests per second, drawn as a Poisson process.")] = None
    users: Annotated[int | None, Option(help="Instead of a rate: users who each wait for their answer.")] = (
        None
    )
    trace: Annotated[
        Path | None, Option(help="Instead of both: CSV or JSON lines of requests, with arrivals and lengths.")
    ] = None
    scale: Annotated[float, Option(help="--trace: arrivals come this many times as fast.")] = 1.0
    sla: Annotated[
        str | None,
        Option(help="A promise: ttft=500ms,tpot=30ms@p95. Without a rate, finds the highest that keeps it."),
    ] = None
    input: Annotated[int, Option(help="Tokens of a prompt.")] = 1024
    output: Annotated[int, Option(help="Tokens of an answer.")] = 256
    spread: Annotated[float, Option(help="Lengths are drawn up to this share off, evenly.")] = 0.0
    burstiness: Annotated[
        float, Option(help="Shape of the gaps: 1 a Poisson process, below 1 burstier, inf constant.")
    ] = 1.0
    requests: Annotated[int | None, Option(help="Requests that are served; of a trace the first ones.")] = (
        None
    )
    seed: Annotated[int, Option(help="Seed of the random draw.")] = 0
    dtype: Annotated[str | None, flag(Sizes, "dtype")] = None
    weights: Annotated[str | None, flag(Sizes, "weights")] = None
    predictor: Annotated[str | None, flag(Trained, "predictor")] = None
    tensor_parallel: Annotated[int | None, Option(help="Ranks of a replica; default: its devices.")] = None
    expert_parallel: Annotated[int, Option(help="Ranks that share the experts of a mixture.")] = 1
    replicas: Annotated[int, Option(help="Replicas; requests go to them in turn.")] = 1
    link: Annotated[str | None, Option(help="What a large exchange between two devices reaches: 14GB/s.")] = (
        None
    )
    engine: Annotated[str, choice("engine", SCHEDULERS, help="Its scheduler and its pool")] = "vllm"
    block_size: Annotated[int | None, Option(help="Tokens of a block; default: the engine's.")] = None
    cache_dtype: Annotated[str | None, Option(help="Type of keys and values: auto, fp8.")] = None
    gpu_memory_utilization: Annotated[
        float | None, Option(help="vllm: share of the memory that it takes.")
    ] = None
    max_num_batched_tokens: Annotated[
        int | None, Option(help="New tokens of a step; default: 2048 of vllm.")
    ] = None
    max_num_seqs: Annotated[int | None, Option(help="Requests of a step; default: 256.")] = None
    prefix_hit: Annotated[float, Option(help="Share of each prompt that the cache already holds.")] = 0.0
    synchronous: Annotated[
        bool, Option("--synchronous", help="The host plans a step after the one before: vLLM before 0.14.")
    ] = False
    curve: Annotated[str | None, Option(help="Rates to show besides: 1,2,4,8.")] = None
    answer: Output


@app.command(
    epilog=examples(
        "neuralpower traffic llama-3.1-8b --device l40s --rate 2 --input 1024 --output 256",
        "neuralpower traffic llama-3.1-70b --device 4xh100-sxm --sla ttft=1s,tpot=40ms@p95",
    )
)
@with_options
def traffic(asked: Traffic) -> None:
    """Serve requests without running anything: waiting times, throughput, cache, and the highest rate."""
    form = form_of(asked.answer["form"], asked.answer["out"], asked.answer["as_json"])
    check_out(asked.answer["out"], form)
    if asked.rate is None and asked.users is None and asked.trace is None and asked.sla is None:
        raise InputError(
            "traffic: no requests; give --rate 4, --users 32, --trace FILE, or --sla to find a rate"
        )
    if asked.replicas < 1:
        raise InputError(f"--replicas {asked.replicas}: 1 or more")
    stage("importing torch and transformers")
    from neuralpower.prediction.rows import BOUNDS
    from neuralpower.report.served import traffic_table
    from neuralpower.serving.traffic import MEASURES, POINTS, served_at, targets_of

    targets: tuple[Target, ...] = targets_of(asked.sla) if asked.sla is not None else ()
    workload = _workload(asked)
    longest = int((workload.prompt + workload.output).max())
    curve = [_rate(point) for point in texts.names(asked.curve, "rate") or ()]
    deployment = _deployment(asked, longest)
    stage("serving")
    found = served_at(
        deployment,
        workload,
        rate=asked.rate,
        replicas=asked.replicas,
        targets=targets,
        curve=curve,
        find=bool(targets) and asked.rate is None and asked.users is None and asked.trace is None,
    )
    give(
        Answer(
            title=f"{found.model} on {found.devices} x {found.device}",
            table=lambda: traffic_table(found),
            json=found.to_json,
            rows=lambda: [
                ["bound", "measure", "point", "seconds"],
                *(
                    [bound, measure, point, getattr(getattr(found, bound), measure)[point]]
                    for bound in BOUNDS
                    for measure in MEASURES
                    for point in POINTS
                ),
            ],
        ),
        form,
        asked.answer["out"],
    )


def _workload(asked: Traffic) -> Workload:
    """The requests; raises InputError."""
    from neuralpower.serving.workload import requested

    names = "rate users trace input output requests scale spread burstiness seed".split()
    return requested(**{name: getattr(asked, name) for name in names})


def _deployment(asked: Traffic, longest: int) -> Deployment:
    """The model on its devices."""
    from neuralpower.serving.traffic import deployed

    cluster = cluster_of(asked.device)
    ranks = cluster.devices if asked.tensor_parallel is None else asked.tensor_parallel
    layout = Layout(tensor=ranks, expert=asked.expert_parallel)
    if layout.ranks != cluster.devices:
        raise InputError(
            f"--device {asked.device} has {cluster.devices} devices, and the layout takes {layout.ranks}; "
            f"choose --tensor-parallel {cluster.devices}"
        )
    dtype = asked.dtype and parsing.dtype(asked.dtype)
    options = {name: getattr(asked, name) for name in ("block_size", "cache_dtype", "gpu_memory_utilization")}
    return deployed(
        asked.model,
        parsing.predictor(asked.predictor, cluster.spec.slug, dtype),
        engine=asked.engine,
        dtype=dtype,
        layout=layout,
        cluster=cluster if layout.ranks > 1 else None,
        weights=asked.weights,
        longest=longest,
        link_bytes_per_s=_link(asked.link),
        options={name: value for name, value in options.items() if value is not None},
        budget=asked.max_num_batched_tokens,
        requests=asked.max_num_seqs,
        prefix_hit=asked.prefix_hit,
        overlaps=not asked.synchronous,
    )


def _link(text: str | None) -> float | None:
    """Bytes per second of a link as text; raises InputError."""
    if text is None:
        return None
    found = LINK.fullmatch(text.strip())
    if found is None or not float(found[1]):
        raise InputError(f"--link {text}: a speed with its unit, above 0; write 14GB/s")
    return float(found[1]) * UNITS[found[2]]


def _rate(text: str) -> float:
    """A rate as text; raises InputError."""
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate < float("inf"):
        raise InputError(f"--curve {text}: requests per second, above 0 and finite; write 1,2,4")
    return rate
