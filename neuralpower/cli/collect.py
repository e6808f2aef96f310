"""`neuralpower collect-data`: measure the layers of a sweep, and write a dataset."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option, Typer

from neuralpower.ask import texts
from neuralpower.ask.words import BACKENDS, COLLECTED_PHASES, EXECUTORS, MEASURING, OUTPUT, PRESETS, TARGET
from neuralpower.cli import parsing, waiting
from neuralpower.cli.choices import choice, measured_choice, power_meters
from neuralpower.cli.commands import MeasuredDevice, OptionGroup, examples, with_options
from neuralpower.cli.output import say, tell
from neuralpower.errors import InputError, whole_number
from neuralpower.files.paths import check_read
from neuralpower.files.stages import stage
from neuralpower.files.terminal import visible

if TYPE_CHECKING:
    from rich.console import Console

    from neuralpower.measure.collect import DeviceLock, Executor, Progress, Request

app = Typer()
FIRST_LINE_S = 30.0


class Fleet(OptionGroup):
    """Options that share the work among machines."""

    panel = "Several machines"

    shard: Annotated[
        str | None, Option(help="I/N: share I of N jobs; writes to its own folder below --out.")
    ] = None
    executor: Annotated[
        str, choice("executor", EXECUTORS, help="ray: measure on the devices of a Ray cluster.")
    ] = "local"
    address: Annotated[str | None, Option(help="Address of the Ray cluster: auto, or HOST:6379.")] = None


class Between(OptionGroup):
    """Who exchanges, where collectives are measured."""

    panel = "Several devices"

    backend: Annotated[
        str | None,
        choice("backend", BACKENDS, help="Measures collectives: gloo between processes, nccl between GPUs."),
    ] = None
    ranks: Annotated[
        str | None, Option(help="Numbers of ranks, with commas; default: 2 processes, or 2,4,8 GPUs.")
    ] = None


class Collect(OptionGroup):
    """Options: the layers to measure, the device, and the place of the rows."""

    panel = MEASURING

    preset: Annotated[
        str,
        choice(
            "preset",
            PRESETS,
            help="2 minutes (5 on CUDA), 20 (25) or 4 hours: quick, standard, full; gaps: on CUDA.",
        ),
    ] = "standard"
    time_budget: Annotated[str | None, Option(help="Such as 20m; default: the preset's.")] = None
    kinds: Annotated[str | None, Option(help="Layer kinds, with commas; default: all.")] = None
    models: Annotated[
        str | None, Option(help="Networks whose layers are measured, with commas; none: only the sweep.")
    ] = None
    dtype: Annotated[str, measured_choice("With commas")] = "float32"
    phase: Annotated[str, choice("phase", COLLECTED_PHASES, help="With commas", several=True)] = "forward"
    from_trace: Annotated[
        Path | None,
        Option(help="Measure nothing: take the layers that a trace of torch.profiler has timed on a GPU."),
    ] = None
    power: Annotated[
        str,
        choice(
            "power meter",
            power_meters,
            help="auto: measure power if a meter works; none: only runtime; or a meter's name.",
        ),
    ] = "auto"
    seed: Annotated[int, Option(help="Seed of the sweep.")] = 0
    device: MeasuredDevice = "cpu"
    wait_for_device: Annotated[
        bool,
        Option(
            "--wait-for-device",
            help="Wait until another collection on the device ends.",
            rich_help_panel=TARGET,
        ),
    ] = False
    fleet: Fleet
    between: Between
    out: Annotated[
        str | None,
        Option(
            "--out",
            "-o",
            help="A folder, or a place such as s3://bucket/name; default: datasets/THIS-MACHINE.",
            rich_help_panel=OUTPUT,
        ),
    ] = None


@app.command(
    epilog=examples(
        "neuralpower collect-data --preset quick --out datasets/mine",
        "neuralpower collect-data --device cuda:0 --dtype float32,bfloat16 --time-budget 1h",
    )
)
@with_options
def collect_data(options: Collect) -> None:
    """Measure the layers of a sweep, and write them with the dataset's card."""
    from neuralpower.data.dataset import continue_from, is_remote, publish
    from neuralpower.devices.host import read_cpu
    from neuralpower.measure.collect import DeviceLock

    out = options.out
    if options.from_trace is not None:
        _profiled(options.from_trace, out)
        return
    request = _request(options)
    if wanted(request.kinds, options.between.backend):
        between, own = options.between, request.folder if out else request.folder / KIND
        waiting.end()
        lock = DeviceLock(options.device, options.wait_for_device, say=tell)
        exchanged(between.backend, between.ranks, lock, own, request.budget_s, request.seed)
        return
    cpu = read_cpu()
    where = (options.fleet.executor, options.fleet.address, options.device)
    measuring = _executor(*where, options.power, cpu.cores, options.wait_for_device)
    place = f"{out}/{request.folder.name}" if options.fleet.shard else out
    if out is not None and is_remote(out):
        continue_from(str(place), request.folder)

    from rich.console import Console

    waiting.end()
    console = Console(stderr=True, soft_wrap=True, markup=False, highlight=False)  # a line of a log stays one
    console.print(visible(f"{options.device} of {cpu.name}, {cpu.cores} cores -> {request.folder}"))
    counts = _collected(request, measuring, console)

    from neuralpower.data.dataset import read_dataset
    from neuralpower.files.atomic import replace_file
    from neuralpower.report.cards import dataset_card
    from neuralpower.report.number_format import counted

    replace_file(request.folder / "README.md", dataset_card(read_dataset(request.folder)))
    if out is not None and is_remote(out):
        publish(request.folder, str(place))
    rows = ", ".join(f"{kind} {count}" for kind, count in sorted(counts.items()))
    console.print(visible(f"{counted(sum(counts.values()), 'row')} in {place or request.folder}: {rows}"))
    folder = place if out is not None else request.folder
    console.print(visible(f"Next: neuralpower train-predictor {shlex.quote(str(folder))}"))
    say(folder)


def _profiled(trace: Path, out: str | None) -> None:
    """Write the rows of a trace; raises InputError."""
    from neuralpower.data.dataset import is_remote

    if out is None or is_remote(out):
        raise InputError(f"--from-trace {trace}: give a folder for its rows, such as --out datasets/profiled")
    check_read(trace)
    stage("importing torch")
    from neuralpower.traces.rows import write_profiled

    counts = write_profiled(trace, Path(out))
    waiting.end()
    rows = ", ".join(f"{kind} {count}" for kind, count in sorted(counts.items()))
    tell(visible(f"{sum(counts.values())} profiled rows in {out}: {rows}"))
    say(out)


def _request(options: Collect) -> Request:
    """The request to the collector; raises InputError."""
    from neuralpower.data.dataset import folder_name, is_remote
    from neuralpower.devices.host import cuda_number, read_cpu
    from neuralpower.measure.collect import Request, preset_named

    device, out = options.device, options.out
    cuda_number(device)  # refuses an unknown name
    phases = texts.names(options.phase, "phase") or ()
    dtypes = tuple(parsing.dtype(name) for name in texts.names(options.dtype, "dtype") or ())
    settings = preset_named(options.preset, device)
    folder = Path("datasets") / (read_cpu().slug if device == "cpu" else device.replace(":", "-"))
    if out is not None:
        folder = folder.with_name(folder_name(out)) if is_remote(out) else Path(out)
    return Request(
        preset=options.preset,
        kinds=texts.names(options.kinds, "kinds"),
        models=texts.names(options.models, "models"),
        dtypes=dtypes,
        seed=options.seed,
        budget_s=settings.budget_s if options.time_budget is None else _budget_s(options.time_budget, device),
        out=folder,
        phases=phases,
        power=options.power,
        shard=parsing.shard(options.fleet.shard),
    )


def _collected(request: Request, measuring: Executor, console: Console) -> Mapping[str, int]:
    """Collect and return rows by kind; shows a progress bar, or log lines if there is no terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    from neuralpower.measure.collect import collect
    from neuralpower.report.number_format import counted

    times = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    columns = (TextColumn("{task.description}"), *times, TextColumn("{task.fields[rate]}"))
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("planning", total=None, rate="")
        log = Log(console.is_terminal)
        kept = 0

        def show(progress: Progress) -> None:
            nonlocal kept
            kept = progress.kept
            if not progress.measured and not progress.powered:
                bar.console.print(outlook(progress))
            bar.update(task, description="measuring", total=progress.planned, completed=progress.done)
            bar.update(task, rate=pace(progress))
            log.tell(progress)

        try:
            return collect(request, show, measuring)
        except KeyboardInterrupt:
            bar.stop()
            rows = counted(kept, "row")
            console.print(f"{rows} kept in {request.folder}; run the same command again to resume")
            raise


def _budget_s(text: str, device: str) -> float:
    """Seconds of a time budget; raises InputError if they are too few to measure anything."""
    from neuralpower.measure.collect import shortest_budget_s

    budget_s, shortest_s = parsing.duration_s(text), shortest_budget_s(device.partition(":")[0])
    if budget_s < shortest_s:
        raise InputError(
            f"time budget {text!r}: on {device} a run takes about as long to start, and would measure "
            f"nothing; give {shortest_s:g}s or more"
        )
    return budget_s


def _executor(
    name: str, address: str | None, device: str, power: str, threads: int, wait: bool = False
) -> Executor:
    """The executor of the measuring processes; raises InputError."""
    from neuralpower.measure.collect import DeviceLock, Local, Worker, command

    if name == "ray":
        from neuralpower.measure.collect.fleet import Fleet

        return Fleet(address, partial(command, device, power), device, wait=wait, say=tell)
    if address is not None:
        text = "needs a Ray cluster; add --executor ray, or leave --address out"
        raise InputError(f"address {address!r}: {text}")
    return Local(Worker(threads, command(device, power)), DeviceLock(device, wait, say=tell))


class Log:
    """Progress lines for a log: the first after some seconds, then fewer and fewer."""

    def __init__(self, seen: bool, say: Callable[[str], None] = tell) -> None:
        self.seen, self.say, self.due_s = seen, say, FIRST_LINE_S

    def tell(self, progress: Progress) -> None:
        """Print a line if it is time for one."""
        if self.seen or progress.spent_s < self.due_s:
            return
        self.due_s = max(progress.spent_s + FIRST_LINE_S, 2 * progress.spent_s)
        done = f"measured {progress.done} of {progress.planned}"
        rate = pace(progress)
        self.say(f"{done} in {_time(progress.spent_s)}{f': {rate}' if rate else ''}")


def outlook(progress: Progress) -> str:
    """The remaining work, in one line."""
    left = progress.estimate
    if not left.runtime and not left.power:
        return "everything is measured already"
    ends = f"; this run ends after {_time(progress.budget_s)}; run the same command again to resume"
    ends = ends if left.runs > 1 else ""
    return f"{left.runtime} runtimes and {left.power} powers to measure: about {_time(left.seconds)}{ends}"


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{round(seconds / 60, 1):g} minutes"


def pace(progress: Progress) -> str:
    """The rate, the time left of the plan and of the budget, and the numbers of failed and noisy layers."""
    count = progress.measured + progress.powered
    if not count or not progress.spent_s:
        return ""
    rate = count / progress.spent_s
    open_ = progress.planned - progress.done + progress.estimate.power - progress.powered
    plan_s, budget_s = open_ / rate, max(progress.budget_s - progress.spent_s, 0.0)
    noisy = f", {progress.noisy} noisy" if progress.noisy else ""
    left = f"whole plan: {_time(plan_s)} left, budget: {_time(budget_s)} left"
    return f"{rate:.0f}/s, {left}, {progress.failed} failed{noisy}"


# `neuralpower collect-data --kinds collective`: exchanges between ranks, each a process.

KIND = "collective"


def wanted(kinds: tuple[str, ...] | None, backend: str | None) -> bool:
    """Whether the kinds are exchanges; raises InputError for exchanges together with other kinds."""
    if kinds is not None and KIND in kinds and len(kinds) > 1:
        rest = ",".join(kind for kind in kinds if kind != KIND)
        raise InputError(
            f"kinds {','.join(kinds)}: collectives are measured apart; run once with --kinds {KIND}, "
            f"and once with --kinds {rest}"
        )
    if backend is not None and kinds is not None and KIND not in kinds:
        raise InputError(
            f"backend {backend!r}: only collectives have one; add --kinds {KIND}, or leave --backend out"
        )
    return backend is not None or kinds == (KIND,)


def ranks_of(text: str) -> tuple[int, ...]:
    """Numbers of ranks with commas; raises InputError."""
    try:
        found = tuple(dict.fromkeys(whole_number(part) for part in text.split(",") if part.strip()))
    except ValueError:
        found = ()
    if not found or min(found) < 2:
        raise InputError(f"ranks {text!r}: write numbers from 2 with commas, as in 2,4")
    return found


def exchanged(
    backend: str | None, ranks: str | None, lock: DeviceLock, out: Path, budget_s: float, seed: int
) -> None:
    """Measure exchanges and write a dataset; raises InputError, DatasetError, DeviceError."""
    device = lock.device
    from neuralpower.measure.exchanges.run import collect_exchanges, usual_ranks

    usual = "gloo" if device == "cpu" else "nccl"
    backend = backend or usual
    if backend == "gloo" and usual == "nccl":
        raise InputError(f"backend gloo: exchanges on {device} are measured by nccl; choose --backend nccl")
    asked = ranks_of(ranks) if ranks is not None else usual_ranks(backend)
    tell(f"{backend} between {', '.join(map(str, asked))} ranks -> {out}")
    lock.acquire()
    try:
        rows, unsupported = collect_exchanges(backend, asked, out, budget_s, seed)
    finally:
        lock.release()
    for function in sorted(unsupported):
        tell(f"Note: {backend} has no {function}: not measured")
    tell(f"{rows} rows in {out}: {KIND} {rows}")
    tell(f"next: neuralpower train-predictor {shlex.quote(str(out))}")
    say(str(out))
