"""The calls of the older profilers torchprof, thop and PyTorch-API's `profile_f_t`, answered by this one.

    with Profile(model, use_cuda=False) as prof:        torchprof: times of the leaf modules that run inside
        model(x)
    print(prof.display(show_events=False))

    flops, params = profile(model, inputs=(x,))         thop and PyTorch-API: work and parameters
    flops, params = profile_f_t(model, inputs=(x,))     the same, with times

Work is counted as `neuralpower.profile` does, in FLOP (2 per multiply-add), attention included; `convention=` gives the
others' figures. `want_op_file=True` writes `output_file.csv` in the current folder, with the headers below; what is not
known there is "-", and `read_op_file` reads all of its forms.
"""

from __future__ import annotations

import csv
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from typing_extensions import Self

from neuralpower.errors import InputError
from neuralpower.files.csv_files import write_csv
from neuralpower.profiling import NetworkProfile
from neuralpower.profiling import profile as run
from neuralpower.profiling.conventions import thop_macs
from neuralpower.profiling.steps import clock_of
from neuralpower.profiling.stopwatch import Clock, Stopwatch
from neuralpower.report.tables import grid, quantity
from neuralpower.trace.tracer import unwrapped

OP_FILE = Path("output_file.csv")
SIZES = ("Input Features", "Output Features", "Dict Size of Emb", "Emb Vector Size", "Norm Size")
TIMES = ("Self CPU total", "CPU total", "GPU total")
FLOP_HEADER = ("Layer Name", *SIZES, "FLOPs")
TIME_HEADER = ("Layer Name", *TIMES)
COMBINED_HEADER = tuple(name.replace(" ", "_") for name in (*FLOP_HEADER, *TIMES))
OLDER_HEADER = ("Layer Name", "FLOPs", *TIMES, *SIZES)
UNITS = (("T", 1e12), ("G", 1e9), ("M", 1e6), ("K", 1e3))
LOG = logging.getLogger(__name__)

Path_ = str | Sequence[str]


# ---- torchprof ----


class TracedModule(NamedTuple):
    """A module as torchprof lists it."""

    path: tuple[str, ...]  # class of the model, then the names
    leaf: bool
    module: nn.Module


@dataclass(frozen=True)
class Times:
    """Of one module over all its calls in a context; seconds."""

    self_cpu_s: float  # its own operators
    cpu_s: float  # with those of the modules inside
    gpu_s: float | None
    calls: int


@dataclass(frozen=True)
class OperatorTime:
    """One operator call of a module; seconds."""

    name: str
    cpu_s: float
    gpu_s: float | None


class Profile:
    """Time what runs in leaf modules, or in those named by `paths`, while the context is open; once only.

    Args:
        model: whose modules are listed.
        enabled: False does nothing.
        use_cuda: whether to take the device's time, too.
        want_op_file: whether `display` writes `output_file.csv`.
        paths: modules to list: names with dots, or tuples that begin with the model's class.
    """

    def __init__(
        self,
        model: nn.Module,
        enabled: bool = True,
        use_cuda: bool = False,
        want_op_file: bool = False,
        paths: Iterable[Path_] | None = None,
    ) -> None:
        self._model, self.enabled, self.use_cuda, self.want_op_file = unwrapped(model), enabled, use_cuda, want_op_file
        self._paths = None if paths is None else [self._dotted(path) for path in paths]
        self._watch: Stopwatch | None = None
        self._running: Any = None
        self._clock: Clock | None = None

    def __enter__(self) -> Self:
        """Start; raises InputError for a second time, or a path that the model does not have."""
        if not self.enabled:
            return self
        if self._watch is not None:
            raise InputError("this Profile has been entered before: a context is measured once; make another one")
        known = dict(self._model.named_modules(remove_duplicate=False))
        for path in self._paths or ():
            if path not in known:
                raise InputError(f"{type(self._model).__name__} has no module {path!r}; named_modules() lists them")
        cuda = self.use_cuda and torch.cuda.is_available()
        self._clock = clock_of(torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu"))
        self.use_cuda = cuda
        self._watch = Stopwatch(self._model, self._clock)
        self._running = self._watch.running()
        self._running.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop, also after an exception."""
        if self._running is not None:
            self._running.__exit__(kind, error, trace)
            self._running = None
        if self._clock is not None:
            self._clock.wait()

    def raw(self) -> tuple[list[TracedModule], dict[tuple[str, ...], list[OperatorTime]]] | None:
        """(modules, operator calls by module path); None where nothing was measured."""
        if self._watch is None:
            return None
        return self._modules(), {self._full(p): list(found) for p, found in self._operators().items() if found}

    def display(self, show_events: bool = False) -> str:
        """A table of the modules, with their operators under each if wanted; writes the file where that was asked for."""
        if self._watch is None:
            return f"<unprofiled {type(self._model).__name__}>"
        cells = []
        times = self.times()
        for path, found in times.items():
            depth = path.count(".") + 1 if path else 0
            cells.append([" " * depth + (path.rpartition(".")[2] or type(self._model).__name__), *self._cells(found)])
            if show_events:
                for name, some in _grouped(self._operators()[path]).items():
                    cells.append([" " * (depth + 1) + name, *self._cells(_times_of(some))])
        if self.want_op_file:
            write_op_file(
                TIME_HEADER,
                [
                    {"Layer Name": p, "Self CPU total": t.self_cpu_s, "CPU total": t.cpu_s, "GPU total": t.gpu_s}
                    for p, t in times.items()
                    if t.calls
                ],
            )
        return grid(["Module", *TIMES, "Number of Calls"], cells)

    def __str__(self) -> str:
        """The table."""
        return self.display()

    def times(self) -> dict[str, Times]:
        """Times by path of the listed modules, in the order of the model."""
        assert self._watch is not None  # asked only when it has run
        operators = self._all_operators()
        calls: dict[str, int] = {}
        for span in self._watch.modules.spans:
            calls[span.path] = calls.get(span.path, 0) + 1
        found = {}
        for module in self._modules():
            path = ".".join(module.path[1:])
            if not module.leaf:
                continue
            own = operators.get(path, [])
            inside = [
                o for p, some in operators.items() if p == path or p.startswith(path + ".") or not path for o in some
            ]
            gpu = sum(o.gpu_s or 0.0 for o in inside) if self.use_cuda else None
            found[path] = Times(sum(o.cpu_s for o in own), sum(o.cpu_s for o in inside), gpu, calls.get(path, 0))
        return found

    def _cells(self, times: Times) -> list[str]:
        if not times.calls:
            return ["", "", "", ""]
        gpu = "-" if times.gpu_s is None else _shown(times.gpu_s)
        return [_shown(times.self_cpu_s), _shown(times.cpu_s), gpu, str(times.calls)]

    def _modules(self) -> list[TracedModule]:
        """All modules; the listed ones are marked as leaves."""
        found = []
        for path, module in self._model.named_modules(remove_duplicate=False):
            leaf = not any(True for _ in module.children()) if self._paths is None else path in self._paths
            found.append(TracedModule(self._full(path), leaf, module))
        return found

    def _operators(self) -> dict[str, list[OperatorTime]]:
        """Own operator calls of the listed modules."""
        everything = self._all_operators()
        paths = [".".join(m.path[1:]) for m in self._modules() if m.leaf]
        return {path: everything.get(path, []) for path in paths}

    def _all_operators(self) -> dict[str, list[OperatorTime]]:
        assert self._watch is not None and self._clock is not None  # asked only when it has run
        found: dict[str, list[OperatorTime]] = {}
        for e in self._watch.events:
            gpu = self._clock.seconds(e.start, e.end) if self.use_cuda else None
            cpu = (e.host_end_ns - e.host_start_ns) / 1e9
            found.setdefault(e.path, []).append(OperatorTime(e.operator, cpu, gpu))
        return found

    def _dotted(self, path: Path_) -> str:
        if isinstance(path, str):
            return path
        names = list(path)
        return ".".join(names[1:] if names and names[0] == type(self._model).__name__ else names)

    def _full(self, path: str) -> tuple[str, ...]:
        return (type(self._model).__name__, *(path.split(".") if path else ()))


def _grouped(operators: Iterable[OperatorTime]) -> dict[str, list[OperatorTime]]:
    groups: dict[str, list[OperatorTime]] = {}
    for operator in operators:
        groups.setdefault(operator.name, []).append(operator)
    return groups


def _times_of(operators: Sequence[OperatorTime]) -> Times:
    cpu = sum(o.cpu_s for o in operators)
    known = [o.gpu_s for o in operators if o.gpu_s is not None]
    return Times(cpu, cpu, sum(known) if known else None, len(operators))


def _shown(seconds: float) -> str:
    return quantity(seconds, "s") if seconds else "0 s"


# ---- thop and PyTorch-API ----


def profile(
    model: nn.Module,
    inputs: Sequence[Any] | Tensor | None = None,
    want_op_file: bool = False,
    custom_ops: Mapping[type[nn.Module], Callable[..., None]] | None = None,
    verbose: bool = True,
    *,
    inp_data: Sequence[Any] | Tensor | None = None,
    use_cuda: bool | None = None,
    cuda_: bool | None = None,
    kwargs: Mapping[str, Any] | None = None,
    convention: str = "matmul",
) -> tuple[int, int]:
    """(FLOP, parameters) of one forward pass.

    `custom_ops` are thop's: a module class to `f(module, inputs, output)` that adds multiply-adds to `module.total_ops`;
    they replace what the modules of that class were counted with. `inp_data` and `cuda_` are older names of `inputs`
    and `use_cuda`. `verbose` logs what could not be counted. Raises InputError and ModelError as `neuralpower.profile`.
    """
    found = _counted(model, inputs, inp_data, use_cuda, cuda_, kwargs, convention, custom_ops, verbose, runtime=False)
    if want_op_file:
        write_op_file(FLOP_HEADER, _layers(model, found, FLOP_HEADER))
    return int(found.total.flops or 0), found.total.parameters


def profile_f_t(
    model: nn.Module,
    inputs: Sequence[Any] | Tensor | None = None,
    want_op_file: bool = False,
    custom_ops: Mapping[type[nn.Module], Callable[..., None]] | None = None,
    verbose: bool = True,
    *,
    inp_data: Sequence[Any] | Tensor | None = None,
    use_cuda: bool | None = None,
    cuda_: bool | None = None,
    kwargs: Mapping[str, Any] | None = None,
    convention: str = "matmul",
) -> tuple[int, int]:
    """As `profile`; the network runs, too, and the file has times beside the work (seconds)."""
    found = _counted(model, inputs, inp_data, use_cuda, cuda_, kwargs, convention, custom_ops, verbose, runtime=True)
    if want_op_file:
        write_op_file(COMBINED_HEADER, _layers(model, found, COMBINED_HEADER))
    return int(found.total.flops or 0), found.total.parameters


def _counted(
    model: nn.Module,
    inputs: Any,
    inp_data: Any,
    use_cuda: bool | None,
    cuda_: bool | None,
    kwargs: Mapping[str, Any] | None,
    convention: str,
    custom_ops: Mapping[type[nn.Module], Callable[..., None]] | None,
    verbose: bool,
    *,
    runtime: bool,
) -> NetworkProfile:
    """The profile; logs what could not be counted if `verbose`."""
    if inputs is not None and inp_data is not None:
        raise InputError("inputs and inp_data are two names of the same argument; give one of them")
    given = inputs if inputs is not None else inp_data if inp_data is not None else ()
    args = (given,) if isinstance(given, Tensor) else tuple(given)
    wants_cuda = use_cuda if use_cuda is not None else cuda_
    rules: dict[Any, Callable[..., int]] = {}
    if custom_ops:
        inner = unwrapped(model)
        own = {}  # thop asks for the very class; here its subclasses count alike
        for kind in {type(m) for m in inner.modules()}:
            base = next((base for base in kind.__mro__ if base in custom_ops), None)
            if base is not None:
                own[kind] = custom_ops[base]
        macs = thop_macs(inner, args, kwargs, own)
        left = {id(m): 2 * macs[path] for path, m in inner.named_modules() if path in macs}
        # thop counts all calls of a module together, a rule is asked at each
        rules = dict.fromkeys(own, lambda module, inputs, outputs: left.pop(id(module), 0))
    found = run(
        model,
        args,
        kwargs,
        device="cuda" if wants_cuda else None,
        runtime=runtime,
        repeat=5,
        warmup=2,
        convention=convention,
        custom=rules,
        power="none",
    )
    for u in found.unmodelled if verbose else ():
        LOG.warning("%s: %d calls of %s are not counted (%s)", found.model, u.count, u.operator, u.reason)
    return found


def _layers(model: nn.Module, found: NetworkProfile, header: Sequence[str]) -> list[dict[str, Any]]:
    """One line per leaf module that ran, and per module that has operators of its own."""
    model = unwrapped(model)
    own_flops: dict[str, int] = {}
    for row in found.rows:
        if row.flops:
            own_flops[row.path] = own_flops.get(row.path, 0) + row.flops
    lines = []
    for m in found.by_module():
        if m.path not in found.types:
            continue
        module = model.get_submodule(m.path)
        leaf = not any(True for _ in module.children())
        if not m.count or not (leaf or own_flops.get(m.path)):
            continue
        values = [m.path or found.model, *_sizes(module), own_flops.get(m.path, 0), m.self_s, m.runtime_s, None]
        lines.append(dict(zip(header, values, strict=False)))
    return lines


def _sizes(module: nn.Module) -> list[Any]:
    """Input and output features, dictionary, vector and norm sizes; None where a module has none."""
    norm = getattr(module, "normalized_shape", None)
    if isinstance(module, nn.modules.batchnorm._NormBase):
        norm = module.num_features
    if isinstance(norm, (tuple, list)):
        norm = "x".join(map(str, norm))
    return [
        getattr(module, "in_features", getattr(module, "in_channels", None)),
        getattr(module, "out_features", getattr(module, "out_channels", None)),
        getattr(module, "num_embeddings", None),
        getattr(module, "embedding_dim", None),
        norm,
    ]


def write_op_file(header: Sequence[str], lines: Iterable[Mapping[str, Any]]) -> None:
    """Write OP_FILE: lines under a header, "-" for what is None; raises InputError where it cannot be written."""
    rows = [["-" if line[name] is None else line[name] for name in header] for line in lines]
    write_csv(OP_FILE, [header, *rows], "folder")


def read_op_file(path: str | Path) -> list[dict[str, Any]]:
    """The lines of a work, time or combined file, also in its older order, under the names with blanks.

    Numbers are numbers, "-" is None, and so is a size of 0. Raises InputError for another file.
    """
    try:
        with Path(path).open(newline="", encoding="utf-8") as file:
            lines = list(csv.reader(file, skipinitialspace=True))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error}); give an {OP_FILE} that a profile wrote") from None
    header = [name.strip().replace("_", " ") for name in lines[0]] if lines else []
    known = [[name.replace("_", " ") for name in h] for h in (FLOP_HEADER, TIME_HEADER, COMBINED_HEADER, OLDER_HEADER)]
    if header not in known:
        raise InputError(
            f"{path}: begins with {','.join(header)[:80]!r}, must begin with {','.join(FLOP_HEADER)!r} or alike"
        )
    return [_read(str(path), number, header, line) for number, line in enumerate(lines[1:], 2) if line]


def _read(path: str, number: int, header: Sequence[str], line: Sequence[str]) -> dict[str, Any]:
    if len(line) != len(header):
        raise InputError(f"{path}:{number}: has {len(line)} values, the header {len(header)}; correct the line")
    return {name: _value(name, text.strip()) for name, text in zip(header, line, strict=True)}


def _value(name: str, text: str) -> Any:
    if name == "Layer Name":
        return text
    if text == "-" or name in SIZES and text == "0":
        return None
    try:
        value = float(text)
    except ValueError:
        return text  # a norm over several axes: "8x8"
    return int(value) if value.is_integer() and name not in TIMES else value


def clever_format(numbers: Sequence[float] | float, format: str = "%.2f") -> Any:
    """`numbers` with T, G, M or K for the powers of 1000 they hold, as text; one number gives one text."""
    if isinstance(numbers, Sequence):
        return tuple(clever_format(number, format) for number in numbers)
    letter, size = next(((letter, size) for letter, size in UNITS if abs(numbers) >= size), ("", 1.0))
    return format % (numbers / size) + letter
