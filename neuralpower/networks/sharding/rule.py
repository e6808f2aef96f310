"""A rule for networks that come without a plan: pairs of products around a nonlinearity, and attention.

One run on the meta device shows them. A product whose outputs go only through point-wise calls into one other
product is split by outputs, the other one by inputs (Shoeybi et al., 2019, section 3). Attention that counts
its heads in attributes is split by heads, where the network then still runs.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from neuralpower.errors import InputError, NeuralPowerError
from neuralpower.layers.tensors import tensors_in
from neuralpower.networks.inputs.inputs import Inputs
from neuralpower.networks.running import Answers, name_of, on_meta
from neuralpower.networks.sharding import experts, styles
from neuralpower.networks.sharding.blocks import Blocks
from neuralpower.networks.sharding.exchanges import PARTIAL
from neuralpower.networks.sharding.plan import ENGINE, FEW, INFERENCE, TRANSFORMERS, Plan, Sharding
from neuralpower.networks.users_code import users_code

PRODUCTS = ("Linear", "Conv1D")  # classes of one product with a matrix
SAME = frozenset("dropout native_dropout clone detach contiguous to _to_copy alias".split())
"""Operators that leave each number where it is, in addition to those that torch calls point-wise."""
VIEWS = frozenset("view reshape _unsafe_view unsqueeze squeeze".split())
PARTS = frozenset("split chunk split_with_sizes unsafe_split".split())
INNER = ("all_head_size", "split_size", "inner_dim", "inner_size", "attention_inner_size")
OUTER = (*INNER, "embed_dim", "hidden_size", "hidden_dim", "dim", "d_model")
ATTRIBUTES = ((*experts.COUNTS, *INNER), experts.COUNTS, (*experts.COUNTS, *OUTER), ())
"""Sets of attributes that count heads or features, in the order in which they are tried."""


def completed(
    module: nn.Module, plan: Plan, sharding: Sharding, example: Callable[[], Inputs] | None
) -> Plan:
    """The plan, or what a rule finds where it says nothing of blocks.

    Raises:
        InputError: there is no plan for the blocks and `asked.require_plan`.
    """
    tables = (styles.VOCABULARY, styles.GATHERED)
    bare = all(one in tables for one in plan.entries.values())
    if bare and sharding.require_plan:
        raise InputError(
            f"{type(module).__name__} has no plan for tensor ranks, and require_plan refuses a rule; "
            "give a plan of names and styles, or leave require_plan out"
        )
    if not bare and (sharding.use == INFERENCE or sharding.require_plan or plan.source != TRANSFORMERS):
        return plan
    blocks = Blocks.of(module, sharding.layout.tensor, plan.entries, experts=sharding.layout.expert == 1)
    plan = plan.with_rule(blocks.how, blocks.rows, [blocks.finish])
    if example is not None and (bare or _whole_products(module, plan.entries)):
        found, finish = by_rule(module, sharding, example, plan.entries)
        plan = plan.with_rule(found, finish=finish)
    return plan


def _whole_products(module: nn.Module, entries: Mapping[str, Any]) -> bool:
    """Whether products that a plan does not name are worth a rule: engines and Megatron split these, too."""
    numbers = sum(p.numel() for p in module.parameters())
    whole = 0
    for path, part in module.named_modules():
        named = any(name.startswith(f"{path}.") for name in entries)
        if experts.is_attention(part) and not named and sum(is_product(one) for one in part.modules()) > 1:
            return True
        if is_product(part) and path not in entries:
            whole += sum(p.numel() for p in part.parameters(recurse=False))
    return whole >= FEW * numbers


def is_product(part: nn.Module) -> bool:
    """Whether a module is one product with a matrix; some networks derive their own from torch's."""
    return isinstance(part, nn.Linear) or type(part).__name__ in PRODUCTS


def by_rule(
    module: nn.Module,
    sharding: Sharding,
    example: Callable[[], Inputs],
    known: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[dict[str, styles.Style], list[Callable[[], None]]]:
    """Styles of the modules that a rule finds, and what is to be done once their parameters are a rank's.

    There are none where the network cannot be run on the meta device. `known` are paths that
    a plan has styles for: their modules are left as they are.

    Raises InputError for heads that an engine's ranks do not divide.
    """
    inputs, ranks = example(), sharding.layout.tensor
    seen = _Followed(module)
    if not _runs(module, inputs, seen):
        return {}, []
    entries: dict[str, styles.Style] = {}
    finish: list[Callable[[], None]] = []
    for sources, target in seen.pairs():
        fits = all(seen.features[source] // seen.packed.get(source, 1) % ranks == 0 for source in sources)
        if fits and not known.keys() & {*sources, target}:
            entries |= _pair(seen.products, sources, target, seen.packed)
    for paths in seen.attention({**entries, **known}).values():
        if sharding.use == ENGINE:
            _check_heads(module, paths[0], ranks)
        trial = _attention(module, paths, seen, ranks, inputs)
        if trial is not None:
            entries |= _styles(paths, seen)
            finish.append(partial(trial.finish, paths))
    return entries, finish


def _check_heads(module: nn.Module, path: str, ranks: int) -> None:
    """Raise InputError for heads that ranks do not divide, as engines do."""
    count = _query_heads(module.get_submodule(path))
    if count is not None and count % ranks:
        raise InputError(
            f"tensor {ranks}: {path} has {count} heads, which {ranks} ranks do not divide; "
            f"choose a divisor of {count}"
        )


def _query_heads(attention: nn.Module) -> int | None:
    return next((n for part in attention.modules() if (n := experts.query_heads(part)) is not None), None)


def _pair(
    products: Mapping[str, nn.Module],
    sources: Sequence[str],
    target: str,
    packed: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, styles.Style]:
    """Products split by outputs, maybe by equal parts of these, and the one that reads them by inputs."""
    turned = {True: (TURNED_COLUMNS, TURNED_ROWS), False: (styles.COLUMNS, styles.ROWS)}
    found = {
        path: replace(turned[hasattr(products[path], "nf")][0], packed=packed.get(path, 1))
        for path in sources
    }
    return {**found, target: turned[hasattr(products[target], "nf")][1]}


def _runs(module: nn.Module, inputs: Inputs, inside: Answers) -> bool:
    """Whether the network runs on the meta device."""
    try:
        with users_code(type(module).__name__):
            on_meta(module, tuple(inputs.args), dict(inputs.kwargs), inside)
    except NeuralPowerError:
        return False
    return True


class _SeenError(Exception):
    """Ends a run of which enough is known."""


class _Followed(Answers):  # type: ignore[no-untyped-call]  # torch leaves its subclass hook untyped
    """Which products' outputs reach which product through point-wise calls alone."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.products = {path: part for path, part in module.named_modules() if is_product(part)}
        self.order: list[str] = []  # of calls
        self.features: dict[str, int] = {}  # that a product makes
        self.shapes: dict[str, list[tuple[int, ...]]] = {}  # of outputs, by path of an attention module
        self._reads: dict[str, frozenset[str]] = {}  # product -> those whose outputs it reads
        self._readers: dict[str, set[str]] = {}
        self._twice: set[str] = set()
        self._leaks: set[str] = set()  # products whose outputs go elsewhere, too
        self.packed: dict[str, int] = {}  # equal parts that a product's outputs are cut into, as gates are
        self._from = WeakIdKeyDictionary()  # tensor -> products that it is made of
        self._near = WeakIdKeyDictionary()  # tensor -> products that lie before it, none between
        self.before: dict[str, frozenset[str]] = {}  # product -> those that lie before it, none between
        self._depth = 0  # of products that are running

    def begins(self, state: Mapping[str, Tensor], inputs: Any) -> None:
        """Have products say when they run."""
        self._handles: list[Any] = []
        for path, part in self.products.items():
            self._handles.append(part.register_forward_pre_hook(self._before(path)))
            self._handles.append(part.register_forward_hook(self._after(path)))

    def __exit__(self, *error: Any) -> Any:
        for handle in self._handles:
            handle.remove()
        return super().__exit__(*error)  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def _before(self, path: str) -> Any:
        def hook(part: nn.Module, args: tuple[Any, ...]) -> None:
            self._depth += 1
            known = bool(args) and isinstance(args[0], Tensor) and args[0] in self._from
            sources: frozenset[str] = self._from[args[0]] if known else frozenset()
            near = bool(args) and isinstance(args[0], Tensor) and args[0] in self._near
            self.before[path] = self._near[args[0]] if near else frozenset()
            if path in self._reads:  # a product that runs twice
                self._leaks |= {path, *sources, *self._reads[path]}
                self._twice.add(path)
            self._reads[path] = sources
            self.order.append(path)
            for source in sources:
                self._readers.setdefault(source, set()).add(path)

        return hook

    def _after(self, path: str) -> Any:
        def hook(part: nn.Module, args: Any, output: Any) -> None:
            self._depth -= 1
            if isinstance(output, Tensor):
                self._from[output] = self._near[output] = frozenset([path])
                self.features[path] = output.shape[-1]

        return hook

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operator, and note where the outputs of products go."""
        output = super().__torch_dispatch__(func, types, args, kwargs)
        if self._depth:
            return output
        inputs = [t for t in tensors_in((args, kwargs or {})) if t.dim()]
        near = frozenset[str]().union(*(self._near[t] for t in inputs if t in self._near))
        for made in tensors_in(output) if near else ():
            self._near[made] = near
        known = [self._from[t] for t in inputs if t in self._from]
        if known:
            sources = frozenset[str]().union(*known)
            name = name_of(func).split(".", 1)[-1]
            kept = torch.Tag.pointwise in func.tags or name in SAME | VIEWS
            same = isinstance(output, Tensor) and all(t.shape[-1:] == output.shape[-1:] for t in inputs)
            parts = _equal_parts(name, output, inputs)
            if parts and not sources & self.packed.keys():
                self.packed.update(dict.fromkeys(sources, len(parts)))
                self._from.update(dict.fromkeys(parts, sources))
            elif kept and same and len(known) == len(inputs):
                self._from[output] = sources
            else:
                self._leaks |= sources
        return output

    def pairs(self) -> Iterator[tuple[list[str], str]]:
        """(Products, the one that alone reads them)."""
        targets: set[str] = set()
        for target, sources in self._reads.items():
            alone = all(self._readers[source] == {target} for source in sources)
            if sources and alone and not sources & (self._leaks | targets) and target not in self._twice:
                targets.add(target)
                yield sorted(sources), target

    def attention(self, found: Mapping[str, Any]) -> dict[type, list[str]]:
        """Paths of attention whose products are in no pair, by class."""
        paths: dict[type, list[str]] = {}
        outer: list[str] = []
        for path, part in self.module.named_modules():
            inside = self.inside(path)
            if not path or any(path.startswith(f"{one}.") for one in outer) or not experts.is_attention(part):
                continue
            if len(inside) > 1 and not any(one in found for one in inside):
                outer.append(path)
                paths.setdefault(type(part), []).append(path)
        return paths

    def columns(self, inside: Sequence[str]) -> list[str]:
        """Products of attention that make heads: all but the last one and those that make latents."""
        *first, _ = inside
        latents = frozenset[str]().union(*(self.before[one] for one in first))
        return [one for one in first if one not in latents]

    def inside(self, path: str) -> list[str]:
        """Products of a module, in the order in which they ran."""
        return [one for one in self.order if one.startswith(f"{path}.")]


def _equal_parts(name: str, output: Any, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
    """The equal parts that a call cuts the last axis of a tensor into; empty for other calls."""
    if name not in PARTS or not isinstance(output, (list, tuple)) or len(inputs) != 1:
        return ()
    width = inputs[0].shape[-1] // len(output)
    equal = all(t.shape == (*inputs[0].shape[:-1], width) for t in output)
    return output if equal else ()


def _attention(
    module: nn.Module, paths: Sequence[str], seen: _Followed, ranks: int, inputs: Inputs
) -> _Trial | None:
    """How attention of one class is shrunk; None where it would not run."""
    first = module.get_submodule(paths[0])
    names = seen.inside(paths[0])
    count = _query_heads(first)
    if count is None or count % ranks or len(set(names)) != len(names):
        return None
    whole = _shape_after(module, first, inputs)
    target = seen.products[names[-1]]
    inner = int(target.weight.shape[0 if hasattr(target, "nf") else 1])
    for wide, per_head, attributes in itertools.product((False, True), (False, True), ATTRIBUTES):
        others = [one for one in module.modules() if one.__dict__.get("num_heads") == count] if wide else []
        fits = False
        trial = _Trial(first, names, seen, attributes, ranks, count if per_head else 0, inner, others)
        with contextlib.suppress(InputError), trial.smaller():
            fits = whole is not None and _shape_after(module, first, inputs) == whole
        if fits:
            return trial
    return None


def _styles(paths: Sequence[str], seen: _Followed) -> dict[str, styles.Style]:
    entries: dict[str, styles.Style] = {}
    for path in paths:
        inside = seen.inside(path)
        sources, target = seen.columns(inside), inside[-1]
        entries |= _pair(seen.products, sources, target)
        latents = {*inside} & seen.before[target] - {*sources}  # with rotated keys
        entries |= dict.fromkeys(latents, styles.style_named("mla_kv_a_proj"))
    return entries


def _shape_after(module: nn.Module, part: nn.Module, inputs: Inputs) -> list[torch.Size] | None:
    """Shape of what a part returns first in a run, which then ends; None where the run fails before."""
    shapes: list[torch.Size] = []

    def note(part: nn.Module, args: Any, output: Any) -> None:
        shapes.extend(t.shape for t in tensors_in(output)[:1])
        raise _SeenError

    with part.register_forward_hook(note):
        _runs(module, inputs, Answers())
    return shapes or None


def _shrunk(part: nn.Module, attributes: Sequence[str], ranks: int) -> dict[str, int]:
    """Attributes of a module that a rank has a part of."""
    found = {name: getattr(part, name) for name in attributes if isinstance(vars(part).get(name), int)}
    keys = {name: vars(part)[name] for name in experts.KEY_COUNTS if isinstance(vars(part).get(name), int)}
    return {name: max(value // ranks, 1) for name, value in ({**found, **keys} if found else {}).items()}


@dataclass(frozen=True)
class _Trial:
    """One way to shrink attention to a rank's heads."""

    first: nn.Module
    names: Sequence[str]  # of its products
    seen: _Followed
    attributes: Sequence[str]  # that count heads or features
    ranks: int
    count: int  # of heads that parameters and buffers have a number of each for; 0: none has
    inner: int  # features of all heads, which a norm may have a number of each for
    others: Sequence[nn.Module]  # that hold the count of heads, too, such as one that makes biases of heads

    @contextlib.contextmanager
    def smaller(self) -> Iterator[None]:
        parts = [*{id(part): part for part in (*self.first.modules(), *self.others)}.values()]
        before = [(part, dict(vars(part)), dict(part._parameters), dict(part._buffers)) for part in parts]
        products = self.seen.products
        try:
            for path, one in _pair(products, self.seen.columns(self.names), self.names[-1]).items():
                styles.shrink(products[path], one, self.ranks, self._rows(path))
            for part in parts:
                vars(part).update(_shrunk(part, self.attributes, self.ranks))
            self.cut(self.first)
            yield
        finally:
            for part, attributes, *tensors in before:
                vars(part).update(attributes)
                held: Any
                for held, own in zip((part._parameters, part._buffers), tensors, strict=True):
                    held.clear()
                    held.update(own)

    def _rows(self, path: str) -> int | None:
        """Features of a rank that are whole heads; None of the last product."""
        if path == self.names[-1]:
            return None
        owner, size = self.seen.module.get_submodule(path.rpartition(".")[0]), self.seen.features[path]
        rows = experts.local_heads(path, owner, size, self.ranks)
        if rows is not None and rows * self.ranks > size:
            experts.group_heads(owner, self.ranks, 1)
        return rows

    def finish(self, paths: Sequence[str]) -> None:
        """Shrink the counts and the parameters of heads of attention at these paths as in the trial."""
        parts = [self.seen.module.get_submodule(path) for path in paths]
        inside = {id(part): part for attention in parts for part in attention.modules()}
        for part in inside.values():
            vars(part).update(_shrunk(part, self.attributes, self.ranks))
        for part in self.others:
            if id(part) not in inside:
                vars(part).update(_shrunk(part, ("num_heads",), self.ranks))
        for attention in parts:
            self.cut(attention)

    def cut(self, attention: nn.Module) -> None:
        """Leave a rank's part of what has one number, or row, for each head or for each of their features."""
        if not self.count:
            return
        sizes = (self.count, self.inner)
        for part in attention.modules():
            held: Any
            for held in (part._parameters, part._buffers) if not is_product(part) else ():
                for name, t in [*held.items()]:
                    axis = next((i for i, n in enumerate(() if t is None else t.shape) if n in sizes), None)
                    if t is not None and axis is not None:
                        small = t.detach().narrow(axis, 0, t.shape[axis] // self.ranks).clone()
                        held[name] = (
                            nn.Parameter(small, t.requires_grad) if isinstance(t, nn.Parameter) else small
                        )


def _columns(name: str, dims: int) -> int | None:
    """The output axis of weights [in, out], as transformers' Conv1D has them."""
    return dims - 1


def _rows(name: str, dims: int) -> int | None:
    return 0 if dims > 1 else None


TURNED_COLUMNS = styles.Style("colwise", axis=_columns, makes=-1, returns=-1)
TURNED_ROWS = styles.Style("rowwise", axis=_rows, given=-1, reads=-1, makes=PARTIAL)
