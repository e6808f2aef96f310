"""Sparse gradients: what gets one, what a step does to its rows, and what PyTorch refuses."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from neuralpower.errors import InputError, ModelError
from neuralpower.layers.elementwise import Elementwise
from neuralpower.layers.movement import Movement
from neuralpower.layers.optimizer import Optimizer
from neuralpower.layers.rows import to_row
from neuralpower.networks.running import META
from neuralpower.optimizers.registry import KNOWN
from neuralpower.platforms import CPU
from neuralpower.prediction.memory.peak import training_memory
from neuralpower.profiling import profile
from neuralpower.profiling.steps import Step, accounted
from neuralpower.profiling.stopwatch import HostClock
from neuralpower.trace.passes import applied
from neuralpower.trace.question import Knows, Question
from neuralpower.trace.recipe import TRAINING, Recipe, default_loss
from neuralpower.trace.records import Task, Trace
from neuralpower.trace.steps.sparse_gradients import Rows
from neuralpower.trace.steps.step_lifetimes import training_lifetimes
from neuralpower.trace.tracer import trace
from tests.program import done, run

BAGS, EACH, TABLE, WIDTH = 8, 5, 2000, 16
ROWS = BAGS * EACH  # that are looked up
NUMBERS = ROWS * WIDTH  # 640


def training_tasks(found: Trace, recipe: Recipe, knows: Knows) -> tuple[Task, ...]:
    return applied(found, Question("training", recipe=recipe, knows=knows)).tasks


class Net(nn.Module):
    """A function of places [8, 5] and a table [2000, 16], then a layer of 16 x 4 + 4 numbers."""

    def __init__(self, look_up: Any, head: bool = True) -> None:
        super().__init__()
        self.look_up = look_up
        self.table = nn.Parameter(torch.randn(TABLE, WIDTH))
        self.head = nn.Linear(WIDTH, 4) if head else nn.Identity()

    def forward(self, places: Tensor) -> Tensor:
        y: Tensor = self.head(self.look_up(self.table, places))
        return y


def places() -> Tensor:
    return torch.arange(1, ROWS + 1).reshape(BAGS, EACH)


def wide(places: Tensor) -> Tensor:
    return places.reshape(-1, 1).expand(-1, WIDTH)


def tied(table: Tensor, places: Tensor) -> Tensor:
    return F.linear(F.embedding(places, table, sparse=True), table)[..., :WIDTH]


LOOK_UPS: dict[str, Any] = {
    "embedding": lambda table, at: F.embedding(at, table, sparse=True),
    "padded": lambda table, at: F.embedding(at, table, sparse=True, padding_idx=0),
    "mean of bags": lambda table, at: F.embedding_bag(at, table, sparse=True),
    "sum of bags": lambda table, at: F.embedding_bag(at, table, sparse=True, mode="sum"),
    "weighted bags": lambda table, at: F.embedding_bag(
        at, table, sparse=True, mode="sum", per_sample_weights=torch.ones(at.shape, device=table.device)
    ),
    "twice": lambda table, at: (
        F.embedding(at, table, sparse=True) + F.embedding(at + 100, table, sparse=True)
    ),
    "scaled": lambda table, at: F.embedding(at, table * 2, sparse=True),
    "gather": lambda table, at: torch.gather(table, 0, wide(at), sparse_grad=True),
    "max norm": lambda table, at: F.embedding(at, table, sparse=True, max_norm=1.0),
    "tied": tied,
    "beside a dense one": lambda table, at: F.embedding(at, table, sparse=True) * table.sum(),
    "dense": lambda table, at: F.embedding(at, table),
    "dense gather": lambda table, at: torch.gather(table, 0, wide(at)),
}
look_ups = pytest.mark.parametrize("look_up", LOOK_UPS.values(), ids=LOOK_UPS)


def traced(look_up: Any, head: bool = True) -> Trace:
    return trace(Net(look_up, head), (places(),), training=True, loss=default_loss)


def step(name: str, recipe: Recipe) -> list[tuple[str, str, int]]:
    """(kind, function, numbers) of what the optimizer does to the table."""
    tasks = training_tasks(traced(LOOK_UPS[name]), recipe, lambda kind, phase: True)
    found = [
        task.layer for task in tasks if task.step == "optimizer" and not isinstance(task.layer, Optimizer)
    ]
    return [(layer.kind, to_row(layer)["function"], to_row(layer)["elements"]) for layer in found]


@look_ups
def test_what_gets_rows_is_what_gets_them_in_pytorch(look_up: Any) -> None:
    net = Net(look_up)
    default_loss(net(places())).backward()
    gradient = net.table.grad
    assert gradient is not None
    found = traced(look_up)
    if gradient.is_sparse:
        # head: 16 x 4 weights and 4 biases
        assert found.trained == (("float32", 64), ("float32", 4))
        ((name, rows),) = found.sparse
        assert (name, rows.elements) == ("table", gradient._values().numel())
        assert rows.places * rows.count == gradient._indices().numel()
        assert rows.bytes == gradient._values().nbytes + gradient._indices().nbytes
    else:
        assert found.trained == (("float32", TABLE * WIDTH), ("float32", 64), ("float32", 4))
        assert found.sparse == ()


@pytest.mark.parametrize("name", ["embedding", "mean of bags"])
def test_no_part_of_a_step_goes_over_the_table(name: str) -> None:
    tasks = training_tasks(traced(LOOK_UPS[name]), Recipe("momentum"), lambda kind, phase: True)
    # the rows of both steps' momentum, joined and added: 2 x 640 numbers; a table has 32,000
    assert max(to_row(task.layer).get("elements", 0) for task in tasks) == 2 * NUMBERS
    assert [task.layer.kind for task in tasks if task.layer.kind == "embedding"] == [
        "embedding"
    ]  # forward alone


def test_a_bags_rows_are_its_gradient_picked_and_divided() -> None:
    (own,) = traced(LOOK_UPS["mean of bags"]).own_backward
    assert [call.layer for call in own.calls] == [
        Movement(function="index", elements=NUMBERS),
        Elementwise(function="mul", elements=NUMBERS, operands=2, broadcast=True),
    ]


def test_rows_of_two_uses_are_joined() -> None:
    found = traced(LOOK_UPS["twice"])
    assert [call.layer for call in found.gradients] == [
        Movement(function="cat", elements=2 * NUMBERS),
        Movement(dtype="int64", function="cat", elements=2 * ROWS),  # a place each
    ]


def test_rows_are_added_to_a_copy_of_a_dense_gradient() -> None:
    # backward, the head comes first: its gradient of 2,000 x 16 numbers is copied, and 40 rows are added
    found = traced(LOOK_UPS["tied"])
    assert [call.layer for call in found.gradients][:2] == [
        Movement(function="copy", elements=TABLE * WIDTH),
        Movement(function="index_add", elements=NUMBERS, run=WIDTH, inplace=True),
    ]


def test_momentum_of_rows_grows_by_the_rows_of_each_step() -> None:
    # 640 numbers of the step before are scaled, 1,280 joined with 80 places, and added to the table
    assert step("embedding", Recipe("momentum", "loop")) == [
        ("elementwise", "mul", NUMBERS),
        ("movement", "cat", 2 * NUMBERS),
        ("movement", "cat", 2 * ROWS),
        ("movement", "index_add", 2 * NUMBERS),
    ]


def test_micro_batches_join_their_rows() -> None:
    recipe = Recipe("adagrad", "loop", accumulation=3)
    assert {numbers for _, _, numbers in step("embedding", recipe)} == {3 * NUMBERS, 3 * ROWS}
    tasks = training_tasks(traced(LOOK_UPS["embedding"]), recipe, lambda kind, phase: True)
    rows = [to_row(task.layer) for task in tasks if task.path == "" and task.layer.kind == "movement"]
    joined = [row["elements"] for row in rows if row["function"] == "cat" and row["dtype"] == "float32"]
    assert joined == [2 * NUMBERS, 3 * NUMBERS]  # of the second, of the third
    copied = [row["elements"] for row in rows if row["function"] == "copy"]
    assert copied == [NUMBERS, ROWS]  # of the first, whose places are the model's own


class Seen(torch.utils._python_dispatch.TorchDispatchMode):
    """Names of the operators that work on numbers of the rows, with how many."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run and note it."""
        output = func(*args, **(kwargs or {}))
        if isinstance(output, Tensor) and output.layout == torch.strided and output.numel() == NUMBERS:
            self.found.append(str(func.overloadpacket).removeprefix("aten."))
        return output


@pytest.mark.parametrize("optimizer", ["adagrad", "sparseadam"])
def test_an_optimizers_step_does_to_rows_what_pytorchs_does(optimizer: str) -> None:
    net = Net(LOOK_UPS["embedding"], head=False)
    made = KNOWN[optimizer].maker(optimizer)(net.parameters(), lr=1e-3)
    with torch.sparse.check_sparse_tensor_invariants(enable=False):
        for _ in range(2):
            made.zero_grad()
            default_loss(net(places())).backward()
            with Seen() as seen:
                made.step()
    ran = [name.rstrip("_") for name in seen.found if name not in ("_values", "detach")]
    tasks = training_tasks(
        traced(LOOK_UPS["embedding"], head=False), Recipe(optimizer, "loop"), lambda *_: True
    )
    ours = [to_row(task.layer)["function"] for task in tasks if task.step == "optimizer"]
    # what has no such output is not seen: sorts and additions into dense tensors; a lookup's output is sparse
    assert [
        {"square": "pow"}.get(name, name) for name in ours if name not in ("sort", "index_add", "index")
    ] == ran


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (Recipe("adam"), "table: its gradient is sparse, which Adam does not support; choose sgd or adagrad"),
        (
            Recipe("adamw"),
            "table: its gradient is sparse, which AdamW does not support; choose sgd or adagrad",
        ),
        (Recipe("rmsprop"), "table: its gradient is sparse, which RMSprop does not support"),
        (
            Recipe("momentum", "fused"),
            r"table: its gradient is sparse, which SGD \(fused\) does not support.*fused out",
        ),
        (Recipe("adagrad", "fused"), r"Adagrad \(fused\) does not support"),
        (
            Recipe("sparseadam"),
            "head.weight: its gradient is dense, and SparseAdam supports sparse ones alone",
        ),
    ],
)
def test_what_pytorchs_optimizers_refuse_is_refused(recipe: Recipe, message: str) -> None:
    with pytest.raises(InputError, match=message):
        training_tasks(traced(LOOK_UPS["embedding"]), recipe.on(CPU), lambda *_: True)
    kind, way = KNOWN[recipe.optimizer].maker(recipe.optimizer), recipe.implementation
    net = Net(LOOK_UPS["embedding"])
    default_loss(net(places())).backward()
    with pytest.raises(RuntimeError, match=r"does not support (sparse|dense) grad"):
        kind(net.parameters(), lr=1e-3, **({way: True} if way else {})).step()


def test_a_tied_table_has_a_dense_gradient_which_any_optimizer_takes() -> None:
    *_, last = training_tasks(traced(LOOK_UPS["tied"]), Recipe("adamw", "loop"), lambda *_: True)
    assert last.layer == Optimizer(function="adamw", tensors=3, elements=TABLE * WIDTH + 64 + 4)


def test_what_pytorch_refuses_backward_or_forward_is_refused() -> None:
    with pytest.raises(InputError, match=r"sparse=True and scale_grad_by_freq=True.*choose one of them"):
        traced(lambda table, at: F.embedding(at, table, sparse=True, scale_grad_by_freq=True))
    with pytest.raises(ModelError, match="max mode does not support sparse weights; .*sparse=False"):
        traced(lambda table, at: F.embedding_bag(at, table, sparse=True, mode="max"))


def test_max_norm_sorts_places_and_scales_rows_before_they_are_read() -> None:
    found = trace(Net(LOOK_UPS["max norm"]), (places(),))
    renorm = [(call.layer.kind, to_row(call.layer)["elements"]) for call in found.calls[:3]]
    assert renorm == [("movement", ROWS), ("reduction", NUMBERS), ("elementwise", NUMBERS)]
    assert found.unmodelled == ()
    assert found.assumptions == ("each row that is looked up is assumed longer than max_norm, and scaled",)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adagrad", "sparseadam"])
@look_ups
def test_memory_of_a_step_is_what_a_real_one_holds(look_up: Any, optimizer: str) -> None:
    net = Net(look_up, head=optimizer != "sparseadam")
    dense = look_up in [LOOK_UPS[name] for name in ("tied", "dense", "dense gather", "beside a dense one")]
    if optimizer == "sparseadam" and dense:
        with pytest.raises(InputError, match="table: its gradient is dense"):
            training_lifetimes(net, (places(),), optimizer=optimizer)
        return
    predicted = training_memory(training_lifetimes(net, (places(),), optimizer=optimizer))
    ways = {} if optimizer == "sparseadam" else {"foreach": False}
    one = Step(
        net,
        (places(),),
        {},
        TRAINING,
        None,
        KNOWN[optimizer].maker(optimizer)(net.parameters(), lr=1e-4, **ways),
    )
    with torch.sparse.check_sparse_tensor_invariants(enable=False):
        one.run(HostClock())
        real = accounted(one, HostClock(), None)[1]
    # of 128 kB of table, and state as large: rows of some kB are coalesced in a kernel that is not seen
    assert predicted.tensor_bytes == pytest.approx(real, rel=0.06)
    assert predicted.gradients_bytes < 20_000 or dense


def test_memory_refuses_what_the_optimizer_refuses() -> None:
    with pytest.raises(InputError, match="table: its gradient is sparse, which AdamW does not support"):
        training_lifetimes(Net(LOOK_UPS["embedding"]), (places(),), optimizer="adamw")


def test_a_profile_of_a_step_counts_rows() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = profile(Net(LOOK_UPS["embedding"]), places(), phase="training", warmup=0, repeat=1)
    moved = [(row.bytes_read or 0) + (row.bytes_written or 0) for row in found.rows]
    # the optimizer: 5 numbers of parameter, gradient and state for each of 640 + 68, 4 B each; the table
    # alone is 128,000 B
    assert max(moved) < 20_000


NETWORK = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = torch.nn.EmbeddingBag(1_000_000, 16, sparse=True)
        self.head = torch.nn.Linear(16, 4)
    def forward(self, places):
        return self.head(self.bag(places))

def net():
    return Net(), (torch.zeros(8, 5, dtype=torch.int64),)
"""


def test_the_command_line_prices_rows_and_refuses_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "network.py"
    file.write_text(NETWORK, encoding="utf-8")
    asked = ["predict", f"{file}:net", "--phase", "training", "--predictor", "amd-epyc-2c", "--optimizer"]
    refused = run(*asked, "adamw")
    assert (refused.code, refused.out) == (2, "")
    assert refused.err == (
        "error: bag.weight: its gradient is sparse, which AdamW does not support; choose sgd or "
        "adagrad, or give its layer "
        "sparse=False\n"
    )
    printed = done(*asked, "momentum")
    assert "momentum keeps that of sparse gradients (bag.weight) as rows, 40 more per step" in printed
    # a dense gradient's zeros alone, 64 MB at some 20 GB/s, would take 3 ms
    assert next(line for line in printed.splitlines() if line.startswith("latency ")).split()[2] == "us"


def test_rows_hold_values_and_places() -> None:
    # 3 rows of 4 numbers of 2 B, and 3 places of 8 B
    assert Rows(3, 4, "bfloat16").bytes == 3 * 4 * 2 + 3 * 8
    assert Rows(3, 4).and_also(Rows(2, 4)).times(2) == Rows(10, 4)
    assert (
        trace(Net(LOOK_UPS["embedding"]), (torch.empty(2, 3, dtype=torch.int64, device=META),)).sparse == ()
    )
