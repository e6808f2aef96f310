"""The interfaces of the older profilers torchprof, thop and PyTorch-API's `profile_f_t`.

    with Profile(model, use_cuda=False) as prof:        torchprof: times of the leaf modules that run inside
        model(x)
    print(prof.display(show_events=False))

    flops, params = profile(model, inputs=(x,))         thop and PyTorch-API: work and parameters
    flops, params = profile_f_t(model, inputs=(x,))     the same, with times

Work is counted as in `neuralpower.profile`, in FLOP (2 per multiply-add) and with attention; `convention=`
counts as the older profilers do. `want_op_file=True` writes `output_file.csv` in the current folder, with "-"
for unknown values; `read_op_file` reads all of its forms.
"""

from __future__ import annotations

import contextlib
import csv
import itertools
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
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
from neuralpower.profiling.stopwatch import Stopwatch
from neuralpower.report.grid import grid
from neuralpower.report.number_format import quantity
from neuralpower.trace.operators.undisturbed import unwrapped

OP_FILE = Path("output_file.csv")
SIZES = ("Input Features", "Output Features", "Dict Size of Emb", "Emb Vector Size", "Norm Size")
TIMES = ("Self CPU total", "CPU total", "GPU total")
FLOP_HEADER = ("Layer Name", *SIZES, "FLOPs")
TIME_HEADER = ("Layer Name", *TIMES)
COMBINED_HEADER = tuple(name.replace(" ", "_") for name in (*FLOP_HEADER, *TIMES))
OLDER_HEADER = ("Layer Name", "FLOPs", *TIMES, *SIZES)
UNITS = {"T": 1e12, "G": 1e9, "M": 1e6, "K": 1e3}
LOG = logging.getLogger(__name__)

Path_ = str | Sequence[str]


# ---- torchprof ----


class TracedModule(NamedTuple):
    """A module in torchprof's list."""

    path: tuple[str, ...]  # class of the model, then the names
    leaf: bool
    module: nn.Module


@dataclass(frozen=True)
class OperatorTime:
    """One operator call of a module; seconds."""

    name: str
    cpu_s: float
    gpu_s: float | None


@dataclass(frozen=True)
class Times:
    """The times of one module over all its calls in a context; seconds."""

    self_cpu_s: float  # of its own operators
    cpu_s: float  # also of the modules inside
    gpu_s: float | None
    calls: int

    @classmethod
    def of(cls, operators: Sequence[OperatorTime]) -> Times:
        cpu_s = sum(o.cpu_s for o in operators)
        gpu_s = [o.gpu_s for o in operators if o.gpu_s is not None]
        return cls(cpu_s, cpu_s, sum(gpu_s) if gpu_s else None, len(operators))

    @property
    def cells(self) -> list[str]:
        if not self.calls:
            return [""] * 4
        times = (self.self_cpu_s, self.cpu_s, self.gpu_s)
        return [*("-" if s is None else quantity(s, "s") if s else "0 s" for s in times), str(self.calls)]


class Profile:
    """Time the leaf modules, or the modules in `paths`, while the context is open; use it once.

    Args:
        model: its modules are listed.
        enabled: False does nothing.
        use_cuda: whether to time the device, too.
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
        self._model, self.enabled, self.want_op_file = unwrapped(model), enabled, want_op_file
        self.use_cuda = use_cuda and torch.cuda.is_available()
        self._name = type(self._model).__name__
        self._paths = None if paths is None else [self._dotted(path) for path in paths]
        self._watch: Stopwatch | None = None
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Self:
        """Start; raises InputError the second time, or for a path that the model does not have."""
        if not self.enabled:
            return self
        if self._watch is not None:
            text = "a context measures once; create another Profile"
            raise InputError(f"this Profile has been entered before: {text}")
        known = dict(self._model.named_modules(remove_duplicate=False))
        for path in self._paths or ():
            if path not in known:
                raise InputError(f"{self._name} has no module {path!r}; named_modules() lists them")
        device = torch.device("cuda", torch.cuda.current_device()) if self.use_cuda else torch.device("cpu")
        clock = clock_of(device)
        self._watch = Stopwatch(self._model, clock)
        self._open.callback(clock.wait)
        self._open.enter_context(self._watch.running())
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def raw(self) -> tuple[list[TracedModule], dict[tuple[str, ...], list[OperatorTime]]] | None:
        """(modules, operator calls by module path); None if nothing was measured."""
        if self._watch is None:
            return None
        modules, operators = self._modules(), self._operators()
        timed = {m.path: operators[path] for path, m in modules.items() if m.leaf and path in operators}
        return [*modules.values()], timed

    def display(self, show_events: bool = False) -> str:
        """A table of the modules, optionally with their operators; writes the file if requested."""
        if self._watch is None:
            return f"<unprofiled {self._name}>"
        cells = []
        times, operators = self.times(), self._operators()
        for path, found in times.items():
            depth = path.count(".") + 1 if path else 0
            cells.append([" " * depth + (path.rpartition(".")[2] or self._name), *found.cells])
            own = operators.get(path, ()) if show_events else ()
            for name in dict.fromkeys(o.name for o in own):
                together = Times.of([o for o in own if o.name == name])
                cells.append([" " * (depth + 1) + name, *together.cells])
        if self.want_op_file:
            lines = [(path, t.self_cpu_s, t.cpu_s, t.gpu_s) for path, t in times.items() if t.calls]
            write_op_file(TIME_HEADER, lines)
        return grid(["Module", *TIMES, "Number of Calls"], cells)

    def __str__(self) -> str:
        return self.display()

    def times(self) -> dict[str, Times]:
        """Times by path of the listed modules, in the order of the model."""
        assert self._watch is not None  # it has run
        operators = self._operators()
        calls = Counter(span.path for span in self._watch.modules.spans)
        found = {}
        for path in (path for path, module in self._modules().items() if module.leaf):
            inside = (some for p, some in operators.items() if not path or f"{p}.".startswith(f"{path}."))
            within = [*itertools.chain(*inside)]
            gpu_s = sum(o.gpu_s or 0.0 for o in within) if self.use_cuda else None
            own_s = sum(o.cpu_s for o in operators.get(path, ()))
            found[path] = Times(own_s, sum(o.cpu_s for o in within), gpu_s, calls[path])
        return found

    def _modules(self) -> dict[str, TracedModule]:
        """All modules by path; the listed ones are marked as leaves."""
        found = {}
        for path, module in self._model.named_modules(remove_duplicate=False):
            leaf = not any(True for _ in module.children()) if self._paths is None else path in self._paths
            found[path] = TracedModule((self._name, *(path.split(".") if path else ())), leaf, module)
        return found

    def _operators(self) -> dict[str, list[OperatorTime]]:
        """Operator calls by path of the module that called them."""
        assert self._watch is not None  # it has run
        found: dict[str, list[OperatorTime]] = {}
        for e in self._watch.events:
            gpu_s = self._watch.clock.seconds(e.start, e.end) if self.use_cuda else None
            time = OperatorTime(e.operator, (e.host_end_ns - e.host_start_ns) / 1e9, gpu_s)
            found.setdefault(e.path, []).append(time)
        return found

    def _dotted(self, path: Path_) -> str:
        if isinstance(path, str):
            return path
        names = list(path)
        return ".".join(names[1:] if names[:1] == [self._name] else names)


# ---- thop and PyTorch-API ----


@dataclass(frozen=True)
class _Named:
    inp_data: Sequence[Any] | Tensor | None = None
    use_cuda: bool | None = None
    cuda_: bool | None = None
    timed: bool = False
    convention: str = "matmul"


def profile(
    model: nn.Module,
    inputs: Sequence[Any] | Tensor | None = None,
    want_op_file: bool = False,
    custom_ops: Mapping[type[nn.Module], Callable[..., None]] | None = None,
    verbose: bool = True,
    *,
    kwargs: Mapping[str, Any] | None = None,
    **named: Any,
) -> tuple[int, int]:
    """(FLOP, parameters) of one forward pass.

    `custom_ops` are thop's: for a module class, `f(module, inputs, output)` adds multiply-adds to
    `module.total_ops`, which replace those of its modules. `verbose` logs calls that could not be counted.
    Keywords: `convention` says what counts as work, as for `neuralpower.profile`; `use_cuda` expects the
    model on a GPU; `inp_data` and `cuda_` are older names of `inputs` and `use_cuda`; `timed` also runs the
    network, and writes times (seconds) next to the work.

    Raises InputError and ModelError as `neuralpower.profile`, and TypeError for another name.
    """
    more = _Named(**named)
    if inputs is not None and more.inp_data is not None:
        raise InputError("inputs and inp_data are two names of the same argument; give only one")
    given = more.inp_data if inputs is None else inputs
    args = (given,) if isinstance(given, Tensor) else tuple(() if given is None else given)
    profiled = run(
        model,
        args,
        kwargs,
        device="cuda" if (more.cuda_ if more.use_cuda is None else more.use_cuda) else None,
        runtime=more.timed,
        repeat=5,
        warmup=2,
        convention=more.convention,
        custom=_rules(unwrapped(model), args, kwargs, custom_ops) if custom_ops else {},
        power="none",
    )
    for u in profiled.unmodelled if verbose else ():
        LOG.warning("%s: %d calls of %s are not counted (%s)", profiled.model, u.count, u.operator, u.reason)
    if want_op_file:
        header = COMBINED_HEADER if more.timed else FLOP_HEADER
        write_op_file(header, (line[: len(header)] for line in _layers(unwrapped(model), profiled)))
    return int(profiled.total.flops or 0), profiled.total.parameters


def profile_f_t(*args: Any, **named: Any) -> tuple[int, int]:
    """The same as `profile` with `timed`: the network also runs, and the file has times (seconds)."""
    return profile(*args, **named, timed=True)


def _rules(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    custom_ops: Mapping[type[nn.Module], Callable[..., None]],
) -> dict[Any, Callable[..., int]]:
    """Convert rules of thop to ours; they also apply to subclasses, unlike in thop."""
    own = {}
    for kind in {type(m) for m in model.modules()}:
        base = next((base for base in kind.__mro__ if base in custom_ops), None)
        if base is not None:
            own[kind] = custom_ops[base]
    macs = thop_macs(model, args, kwargs, own)
    left = {id(m): 2 * macs[path] for path, m in model.named_modules() if path in macs}
    # thop counts all calls of a module at once, a rule counts each call
    return dict.fromkeys(own, lambda module, inputs, outputs: left.pop(id(module), 0))


def _layers(model: nn.Module, profile: NetworkProfile) -> Iterator[list[Any]]:
    """One line per leaf module that ran, and per module that has operators of its own."""
    own_flops: Counter[str] = Counter()
    for row in profile.rows:
        own_flops[row.path] += row.flops or 0
    for m in profile.by_module():
        if m.path in profile.types and m.count:
            module = model.get_submodule(m.path)
            if own_flops[m.path] or not any(True for _ in module.children()):
                yield [
                    m.path or profile.model,
                    *_sizes(module),
                    own_flops[m.path],
                    m.self_s,
                    m.runtime_s,
                    None,
                ]


def _sizes(module: nn.Module) -> list[Any]:
    """Input and output features, dictionary, vector and norm sizes; None where a module has none."""
    norm = getattr(module, "normalized_shape", None)
    if isinstance(module, nn.modules.batchnorm._NormBase):
        norm = module.num_features
    if isinstance(norm, (tuple, list)):
        norm = "x".join(map(str, norm))
    sizes = [
        getattr(module, f"{end}_features", getattr(module, f"{end}_channels", None)) for end in ("in", "out")
    ]
    return [*sizes, getattr(module, "num_embeddings", None), getattr(module, "embedding_dim", None), norm]


def write_op_file(header: Sequence[str], lines: Iterable[Sequence[Any]]) -> None:
    """Write OP_FILE: lines under a header, "-" for None; raises InputError if it cannot be written."""
    rows = (["-" if value is None else value for value in line] for line in lines)
    write_csv(OP_FILE, [header, *rows], "folder")


def read_op_file(path: str | Path) -> list[dict[str, Any]]:
    """The lines of a work, time or combined file, also in its older order, by names with spaces.

    "-" is None, and so is a size of 0. Raises InputError for another file.
    """
    try:
        with Path(path).open(newline="", encoding="utf-8") as file:
            lines = list(csv.reader(file, skipinitialspace=True))
    except (OSError, UnicodeDecodeError) as error:
        text = f"cannot be read ({error}); give an {OP_FILE} that a profile wrote"
        raise InputError(f"{path}: {text}") from None
    header, *rows = [[text.strip() for text in line] for line in lines] or [[]]
    header = [name.replace("_", " ") for name in header]
    known = (FLOP_HEADER, TIME_HEADER, COMBINED_HEADER, OLDER_HEADER)
    if header not in [[name.replace("_", " ") for name in names] for names in known]:
        begin = ",".join(header)[:80]
        raise InputError(f"{path}: begins with {begin!r}, must begin with {','.join(FLOP_HEADER)!r} or alike")
    for number, row in enumerate(rows, 2):
        if row and len(row) != len(header):
            found = f"has {len(row)} values, the header {len(header)}"
            raise InputError(f"{path}:{number}: {found}; correct the line")
    return [{name: _value(name, text) for name, text in zip(header, row, strict=True)} for row in rows if row]


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
    """Texts of `numbers` with T, G, M or K for powers of 1000; one number returns one text."""
    if isinstance(numbers, Sequence):
        return tuple(clever_format(number, format) for number in numbers)
    letter = next((letter for letter, size in UNITS.items() if abs(numbers) >= size), "")
    return format % (numbers / UNITS.get(letter, 1.0)) + letter
