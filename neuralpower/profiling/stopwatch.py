"""Time every operator of a real run, with the module that called it.

    forward    the innermost running module is the caller
    backward   the caller of the forward operator whose sequence number autograd's node carries
    optimizer  the model itself

The clock runs inside the dispatch mode, so that the mode's own time falls between operators.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from neuralpower.networks.running import is_composite, name_of
from neuralpower.trace.lifetimes import WEIGHTS, Lifetimes
from neuralpower.trace.operators.modules import ModuleStack

_now = time.perf_counter_ns
Caller = tuple[str, str, str]  # phase, path of the module, operator
ACCUMULATE = "accumulate_grad"  # autograd's own node that adds to a parameter's gradient


class Clock(Protocol):
    """Marks in a device's time; they turn into seconds once the device has finished."""

    def mark(self) -> Any:
        """Now."""

    def seconds(self, start: Any, end: Any) -> float:
        """Between two marks, after `wait`."""

    def wait(self) -> None:
        """Let the device finish."""


class HostClock:
    """For a device whose calls return when they are done, as a CPU's."""

    def mark(self) -> int:
        return _now()

    def seconds(self, start: int, end: int) -> float:
        return (end - start) / 1e9

    def wait(self) -> None:
        """Nothing is pending."""


class CudaClock:
    """Events in the current stream; they are read after a synchronisation at the end of a run."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def mark(self) -> Any:
        """An event after all that was launched."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return event

    def seconds(self, start: Any, end: Any) -> float:
        return float(start.elapsed_time(end)) / 1e3

    def wait(self) -> None:
        torch.cuda.synchronize(self.device)


class Event(NamedTuple):
    """One operator call; `origin` is the forward operator whose gradient it works on."""

    phase: str
    path: str
    operator: str
    origin: str
    start: Any
    end: Any
    host_start_ns: int
    host_end_ns: int


class Span(NamedTuple):
    path: str
    start_ns: int
    end_ns: int


class Account:
    """The work of each caller (phase, path, operator), and the bytes of all tensors alive.

    A storage counts from the operator that returned it until it is freed; a kernel's work space is not seen.
    """

    def __init__(self, held: Iterable[Tensor]) -> None:
        self.lifetimes = Lifetimes()
        self.lifetimes.hold(held, WEIGHTS)
        self.outputs: Counter[Caller] = Counter()  # bytes
        self.peaks: Counter[Caller] = Counter()  # bytes alive at most, after a call
        self.flops: Counter[Caller] = Counter()  # of products
        self.elements: Counter[Caller] = Counter()  # of each call's largest tensor

    @property
    def peak(self) -> int:
        return self.lifetimes.peak

    def note(self, key: Caller, inputs: Any, output: Any, flops: int) -> None:
        """One operator call that has returned `output` and whose products take `flops`."""
        sizes = (t.numel() for t in tree_iter((inputs, output)) if isinstance(t, Tensor))
        self.elements[key] += max(sizes, default=0)
        self.outputs[key] += self.lifetimes.called(output)
        self.peaks[key] = max(self.peaks[key], self.lifetimes.live)
        self.flops[key] += flops


class Stopwatch(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves its subclass hook untyped
    """Notes operator calls while it is entered.

    `whole` are the (path, operator) that are one call in the trace; other composite operators are decomposed,
    as there. None takes every operator as it comes.
    """

    supports_higher_order_operators = True

    def __init__(
        self,
        model: nn.Module,
        clock: Clock,
        whole: frozenset[tuple[str, str]] | None = None,
        account: Account | None = None,
        flops_of: Callable[..., int] | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.clock, self.whole, self.account, self.flops_of = clock, whole, account, flops_of
        self.phase = "forward"
        self.scope = ""  # path of what runs outside of every module
        self._host = isinstance(clock, HostClock)
        self._noted: list[tuple[Any, ...]] = []  # events as plain tuples, which are made faster
        self.modules = _Spans(model)
        self._owner = {id(p): name.rpartition(".")[0] for name, p in model.named_parameters()}
        self._origin: dict[int, tuple[str, str]] = {}

    @property
    def events(self) -> list[Event]:
        return [Event(*noted) for noted in self._noted]

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        with self.modules.attached(), self:
            yield

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        operator, composite = name_of(func), is_composite(func)
        if self.whole is None or self.phase != "forward":
            path, origin = self._caller(operator)
        else:
            path, origin = self.modules.path or self.scope, operator
        if composite and self.whole is not None and (path, operator) not in self.whole:
            with self:
                return func.decompose(*args, **kwargs)
        if self._host:  # marks are times of the host
            start = _now()
            output = func(*args, **kwargs)
            end = _now()
            self._noted.append((self.phase, path, operator, origin, start, end, start, end))
        else:
            host_start = _now()
            start = self.clock.mark()
            output = func(*args, **kwargs)
            end = self.clock.mark()
            self._noted.append((self.phase, path, operator, origin, start, end, host_start, _now()))
        if self.account is not None:
            flops = self.flops_of(operator, args, kwargs, output) if self.flops_of else 0
            self.account.note((self.phase, path, origin), (args, kwargs), output, flops)
        return output

    def _caller(self, operator: str) -> tuple[str, str]:
        """(path of the module, forward operator) that a call belongs to."""
        if self.phase == "forward":
            path = self.modules.path or self.scope
            if self.whole is None:  # autograd has just made the node of this operator, if it needs one
                number = torch.autograd._get_sequence_nr() - 1  # type: ignore[attr-defined]
                self._origin.setdefault(number, (path, operator))
            return path, operator
        node = torch._C._current_autograd_node() if self.phase == "backward" else None
        if node is None:
            return self.scope, operator
        variable = getattr(node, "variable", None)
        if variable is not None:
            return self._owner.get(id(variable), ""), ACCUMULATE
        return self._origin.get(node._sequence_nr(), ("", operator))


class _Spans(ModuleStack):
    """Keeps the times of each module's calls."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self._ended: list[tuple[str, int, int]] = []
        self._starts: list[tuple[str, int]] = []

    @property
    def spans(self) -> list[Span]:
        """Module calls in the order in which they ended."""
        return [Span(*ended) for ended in self._ended]

    def entered(self, path: str) -> None:
        self._starts.append((path, _now()))

    def left(self, path: str, args: Any, output: Any) -> None:
        while self._starts:
            name, start = self._starts.pop()
            if name == path:
                self._ended.append((path, start, _now()))
                break
