"""Code of a user that does what no model should: it ends in one line, and never ends the program."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import neuralpower
from neuralpower.errors import BoundError, InputError, ModelError, UsersError, first_line, quoted
from neuralpower.files import paths
from neuralpower.files.json_files import read_text
from neuralpower.networks.inputs import size_limits as bounds
from neuralpower.networks.sources import InputRequest, resolve
from neuralpower.networks.users_code import check_computed, raised, users_code
from neuralpower.profiling import profile
from neuralpower.trace.steps.step_lifetimes import training_lifetimes
from neuralpower.trace.tracer import trace
from tests.program import run


class Own(BaseException):
    """An exception of a user that is none of `Exception`."""


class SpeechlessError(Exception):
    def __str__(self) -> str:  # noqa: D105
        raise ValueError("no words")


class NumberedError(Exception):
    def __str__(self) -> str:  # noqa: D105
        return 5  # type: ignore[return-value]


class LeavingError(Exception):
    def __str__(self) -> str:  # noqa: D105
        sys.exit(0)


class EndlessError(Exception):
    def __str__(self) -> str:  # noqa: D105
        return "x" * 10_000_000


ERRORS: list[BaseException] = [
    SystemExit(0),
    SystemExit(),
    SystemExit("bye"),
    GeneratorExit(),
    Own("mine"),
    SpeechlessError(),
    NumberedError(),
    LeavingError(),
    EndlessError(),
    StopIteration(3),
    StopAsyncIteration(),
    RecursionError(),
    MemoryError(),
]


class Raising(nn.Module):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.raises: Callable[[Tensor], Tensor] = functools.partial(self.fail, error)

    @staticmethod
    def fail(error: BaseException, x: Tensor) -> Tensor:
        raise error

    def forward(self, x: Tensor) -> Tensor:
        return self.raises(self.linear(x))


class Lazy(nn.Module):
    """Its output is an iterator."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Any:
        return map(self.linear, [x])


class Awaited(Lazy):
    async def forward(self, x: Tensor) -> Any:
        return self.linear(x)


class Yielding(Lazy):
    def forward(self, x: Tensor) -> Iterator[Tensor]:
        yield self.linear(x)


X = torch.zeros(2, 4)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_whatever_a_forward_raises_is_a_model_error_of_one_line(error: BaseException) -> None:
    for ask in (
        lambda model: trace(model, (X,)),
        lambda model: training_lifetimes(model, (X,)),
        lambda model: profile(model, X, runtime=False),
    ):
        with pytest.raises(ModelError) as told:
            ask(Raising(error))
        text = str(told.value)
        assert type(error).__name__ in text
        assert len(text) < 1000
        assert "\n" not in text


def test_ctrl_c_stays_what_it_is() -> None:
    with pytest.raises(KeyboardInterrupt):
        trace(Raising(KeyboardInterrupt()), (X,))


@pytest.mark.parametrize("kind", [Lazy, Awaited, Yielding])
def test_a_forward_that_computes_nothing_is_refused(kind: type[nn.Module]) -> None:
    with pytest.raises(ModelError, match="nothing"):
        neuralpower.load("amd-epyc-2c").predict(kind(), X)
    with pytest.raises(ModelError, match="nothing computed"):
        trace(kind(), (X,))


def test_a_coroutine_is_closed_before_python_warns_of_it() -> None:
    async def later() -> int:
        return 1

    waiting = later()
    with pytest.raises(ModelError, match="gives a coroutine"):
        check_computed((X, [waiting]), "it")
    assert inspect.getcoroutinestate(waiting) == inspect.CORO_CLOSED


@pytest.mark.parametrize("error", [SpeechlessError(), NumberedError(), LeavingError()])
def test_an_error_without_words_is_named_by_its_class(error: Exception) -> None:
    assert first_line(error) == quoted(error) == type(error).__name__


def test_a_foreign_text_is_shortened() -> None:
    assert quoted(EndlessError()) == f"EndlessError: {'x' * 400} ..."


def test_users_code_says_what_failed_and_keeps_the_cause() -> None:
    with (
        pytest.raises(UsersError, match=r"^a thing fails: SystemExit: 7; leave it out$") as told,
        users_code("a thing fails", "leave it out"),
    ):
        sys.exit(7)
    assert isinstance(raised(told.value), SystemExit)
    with pytest.raises(InputError, match="^ours$"), users_code("a thing fails"):
        raise InputError("ours")


MODELS = """
import sys
import torch
from torch import nn

def plain(): return nn.Linear(4, 4)
def leaving(): sys.exit(0)
def unusual(): raise BaseException("unusual")
async def awaited(): return nn.Linear(4, 4)
def generated(): yield nn.Linear(4, 4)

class Leaving(nn.Linear):
    def forward(self, x): sys.exit(0)
class Unevaluated(nn.Linear):
    def train(self, mode=True): sys.exit(0)
class Within(nn.Linear):
    def __init__(self):
        super().__init__(4, 4)
        self.own = self

def forward(): return Leaving(4, 4)
def mode(): return Unevaluated(4, 4)
def within(): return Within()
def deep():
    model = nn.Linear(4, 4)
    for _ in range(2000): model = nn.Sequential(model)
    return model
"""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("leaving", "cannot be built: SystemExit: 0"),
        ("unusual", "cannot be built: BaseException: unusual"),
        ("awaited", "gives a coroutine"),
        ("generated", "gives a generator"),
        ("forward", "its forward raises SystemExit: 0; a forward pass must not end the program"),
        ("mode", "cannot be built: SystemExit: 0"),
        ("within", "RecursionError"),
        ("deep", "RecursionError"),
    ],
)
def test_no_model_ends_the_program(tmp_path: Path, name: str, said: str) -> None:
    file = tmp_path / "models.py"
    file.write_text(MODELS)
    ran = run("predict", f"{file}:{name}", "--input-shape", "4", "--predictor", "amd-epyc-2c")
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert said in ran.err


@pytest.mark.parametrize("body", ["raise SystemExit(0)", "def __getattr__(name): raise SystemExit(0)"])
def test_no_import_ends_the_program(tmp_path: Path, body: str) -> None:
    file = tmp_path / "leaving.py"
    file.write_text(body)
    ran = run("predict", f"{file}:net", "--predictor", "amd-epyc-2c")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert "SystemExit: 0" in ran.err


@pytest.mark.parametrize("body", ["import sys; sys.exit(0)", "yield torch.zeros(1, 4)"])
def test_no_example_inputs_end_the_program(tmp_path: Path, body: str) -> None:
    file = tmp_path / "inputs.py"
    file.write_text(
        f"import torch\ndef net(): return torch.nn.Linear(4, 4)\ndef example_inputs(batch): {body}\n"
    )
    ran = run("predict", f"{file}:net", "--predictor", "amd-epyc-2c")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert "example_inputs(1)" in ran.err


# ---- bounds ----


@pytest.mark.parametrize(
    "model",
    [
        "transformers:gpt2?n_layer=1000000000",
        "transformers:llama?num_hidden_layers=1000000000",
        "transformers:bert?num_labels=1000000000",
        "transformers:bert?num_hidden_layers=1&vocab_size=1000000000000",
        "transformers:bert?num_hidden_layers=1&hidden_size=1000000000&num_attention_heads=1",
        "transformers:mixtral?num_hidden_layers=1&num_local_experts=1000000000",
        "zoo:resnet18?classes=1000000000000",
        "zoo:paradnn_fc?layers=1000000000",
        "zoo:paradnn_rnn?layers=1000000000",
    ],
)
def test_a_network_beyond_all_bounds_is_refused_before_it_fills_the_memory(model: str) -> None:
    with pytest.raises(BoundError, match="NEURALPOWER_MOST_"):
        resolve(model).build()


def test_the_bound_on_modules_can_be_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "many.py"
    file.write_text(
        "from torch import nn\ndef net(count=6): return nn.ModuleList([nn.ReLU() for _ in range(count)])\n"
    )
    make = nn.Module.__init__
    monkeypatch.setenv("NEURALPOWER_MOST_MODULES", "7")  # six, and the list
    assert len(list(resolve(f"{file}:net").build().children())) == 6
    with pytest.raises(BoundError, match="more than 7 modules"):
        resolve(f"{file}:net?count=7").build()
    assert nn.Module.__init__ is make
    monkeypatch.setenv("NEURALPOWER_MOST_MODULES", "many")
    with pytest.raises(InputError, match="'many': must be a number"):
        resolve(f"{file}:net").build()


def test_a_pass_of_too_many_calls_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURALPOWER_MOST_CALLS", "3")
    assert len(trace(nn.Sequential(*(nn.ReLU() for _ in range(3))), (X,)).calls) == 3
    with pytest.raises(BoundError, match="more than 3 operators"):
        trace(nn.Sequential(*(nn.ReLU() for _ in range(4))), (X,))


def test_a_network_that_the_machine_cannot_hold_is_not_built_with_values(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bounds, "available_bytes", lambda: 1000)  # of the 40,000 of 100 x 100 weights
    source = resolve("zoo:deep_mnist")
    with pytest.raises(BoundError, match="memory that are free here"):
        source.build("cpu")
    assert source.build("meta").training is False


def test_work_beyond_64_bits_is_refused() -> None:
    # 2 FLOP x 2**40 rows x 2**20 weights = 2**61; the rows are 2**40 x 2**20 x 4 = 2**62 bytes, read twice
    model, x = nn.Linear(2**20, 1, device="meta"), torch.empty(2**40, 2**20, device="meta")
    with pytest.raises(InputError, match="more than the 9.22e"):
        trace(nn.Sequential(nn.ReLU(), model), (x,))
    assert trace(model, (x[: 2**39],)).flops == 2**60  # and 2**39 x 2**20 x 4 bytes = 2**61


# ---- names of files ----

LONG = "x" * 300


@pytest.mark.parametrize("name", [LONG, "a\0b", "p/" * 3000])
def test_a_name_that_no_file_can_have_is_no_file(name: str) -> None:
    assert not (paths.is_file(name) or paths.is_folder(name) or paths.is_there(name))
    with pytest.raises((OSError, ValueError)):  # what every reader makes one line of
        read_text(Path(name))


@pytest.mark.parametrize(
    "command",
    [
        ("predict", LONG),
        ("predict", f"{LONG}.py:net"),
        ("predict", f"{LONG}.json"),
        ("predict", f"{LONG}.pt2"),
        ("predict", "zoo:deep_mnist", "--predictor", LONG),
        ("predict", "zoo:deep_mnist", "--predictor", "amd-epyc-2c", "--csv", LONG),
        ("fit", "zoo:deep_mnist", "--device", f"{LONG}.json"),
        ("score", LONG, "--predictor", "amd-epyc-2c"),
        ("evaluate", f"@{LONG}", "--predictor", "amd-epyc-2c"),
        ("train-predictor", LONG),
        ("bench-log", LONG),
    ],
)
def test_a_name_of_300_letters_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = run(*command)
    assert (ran.code, ran.err.count("\n")) == (2, 1), ran.err
    assert ran.err.startswith("error: ")


@pytest.mark.parametrize(
    "command",
    [
        ("predict", "pipe"),
        ("predict", "zoo:deep_mnist", "--predictor", "pipe"),
        ("predict", "zoo:deep_mnist", "--predictor", "amd-epyc-2c", "--csv", "pipe"),
        ("fit", "zoo:deep_mnist", "--device", "pipe.json"),
        ("score", "pipe", "--predictor", "amd-epyc-2c"),
        ("score", "/dev/zero", "--predictor", "amd-epyc-2c"),
        ("evaluate", "@pipe", "--predictor", "amd-epyc-2c"),
        ("train-predictor", "pipe"),
        ("train-predictor", "data"),
        ("bench-log", "pipe"),
    ],
)
def test_a_pipe_in_place_of_a_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    Path("data/dataset.json").write_text('{"schema": 1, "device": "Synthetic"}')
    for name in ("pipe", "pipe.json", "data/linear.csv"):
        os.mkfifo(name)
    ran = run(*command)
    assert (ran.code, ran.err.count("\n")) == (2, 1), ran.err


@pytest.mark.parametrize("architectures", ["5", "[5]", '"BertModel"', "{}"])
def test_architectures_of_a_wrong_type_are_refused(tmp_path: Path, architectures: str) -> None:
    (tmp_path / "config.json").write_text(f'{{"model_type": "bert", "architectures": {architectures}}}')
    with pytest.raises(ModelError, match=r"architectures|not accepted"):
        resolve(tmp_path)


def test_a_module_without_parameters_is_profiled_without_a_run() -> None:
    source = resolve("zoo:deep_mnist")
    inputs = source.inputs(nn.ReLU(), InputRequest(), "meta")
    counted = profile(nn.ReLU(), inputs.args, runtime=False)
    assert len(counted.rows) == 1
