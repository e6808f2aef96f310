"""The batch size for other libraries' loops: it fits, the next does not, and nothing stops a training."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from neuralpower.devices.spec import spec_of
from neuralpower.errors import InputError
from neuralpower.integrations import batch_size_callback, fitting_batch_size, largest_batch
from neuralpower.platforms import platform_of
from neuralpower.prediction.memory.peak import training_memory
from neuralpower.trace.steps.step_lifetimes import training_lifetimes

GPU = {"device": "h100", "memory": "6GB"}


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(256, 4096), nn.ReLU(), nn.Linear(4096, 10))


def high_bytes_of(model: nn.Module, size: int = 1, **settings: Any) -> float:
    platform = platform_of(spec_of("h100").hardware())
    step = training_lifetimes(model, (torch.empty(size, 256),), platform=platform, **settings)
    return training_memory(step, platform=platform).high_bytes


def test_the_size_fits_and_a_larger_one_does_not() -> None:
    found = largest_batch(network(), torch.ones(60_000, 256, device="meta"), **GPU)
    platform = platform_of(spec_of("h100").hardware())
    left = 6e9 * (1 - platform.margin("training")) - platform.framework.process_bytes
    assert high_bytes_of(network(), found) <= left < high_bytes_of(network(), found + found // 50)


def test_the_limit_and_the_settings_hold() -> None:
    sample = torch.ones(8, 256)
    assert largest_batch(network(), (sample,), at_most=4, **GPU) == 4
    assert largest_batch(network(), sample, device="h100", memory="10MB", at_most=1) == 0
    wide = nn.Linear(256, 2**20, device="meta")  # 1.1 GB of weights, and twice as much of Adam's state
    room = high_bytes_of(wide, optimizer="sgd") + 1e8
    sizes = [
        largest_batch(wide, {"input": sample}, optimizer=name, device="h100", memory=room, at_most=1)
        for name in ("sgd", "adamw")
    ]
    assert sizes == [1, 0]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"at_most": 0}, "at_most 0: must be a whole number, 1 or more"),
        ({"device": "no such"}, "no such"),
        ({"memory": "many"}, "many"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        largest_batch(network(), torch.ones(8, 256), **settings)


def test_a_loop_gets_the_size_in_both_ways() -> None:
    fitting = fitting_batch_size(network(), torch.ones(8, 256), at_most=48, **GPU)
    with fitting as size:
        assert size == 48

    @fitting
    def train(batch_size: int, epochs: int, rate: float = 0.1) -> tuple[int, int, float]:
        return batch_size, epochs, rate

    assert train(3, rate=0.2) == (48, 3, 0.2)
    assert train.__name__ == "train"
    with pytest.raises(RuntimeError, match="from within"), fitting:
        raise RuntimeError("from within")


class Odd(nn.Module):
    """Runs on no tensor without values."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        raise ValueError("two\nlines")


@pytest.mark.parametrize(
    ("model", "sample", "words"),
    [
        (None, torch.ones(8, 4), "no model was given"),
        (network(), None, "no sample batch was given"),
        (Odd(), torch.ones(8, 4), "two"),
        (network(), {"input": 3}, "the sample has no tensor"),
    ],
)
def test_what_cannot_be_predicted_leaves_the_own_size_with_one_line(
    model: nn.Module | None, sample: Any, words: str
) -> None:
    fitting = fitting_batch_size(model, sample, starting_batch_size=24, **GPU)
    with pytest.warns(UserWarning, match="neuralpower: batch size 24 stays: ") as said, fitting as size:
        assert size == 24
    (text,) = [str(one.message) for one in said]
    assert words in text
    assert "\n" not in text


def test_without_sample_and_size_there_is_nothing_to_give() -> None:
    with pytest.raises(InputError, match="give one of them"), fitting_batch_size(network()):
        pass


# ---- precision ----


def test_a_precision_is_that_of_casts_or_of_weights() -> None:
    wide, sample = nn.Linear(256, 2**20, device="meta"), torch.ones(8, 256)
    room = high_bytes_of(wide.to(torch.bfloat16), optimizer="adamw") + 1e8
    wide.float()
    how = {"device": "h100", "memory": room, "at_most": 1}
    sizes = [largest_batch(wide, sample, precision=name, **how) for name in ("bf16-true", "bf16-mixed", 32)]
    assert sizes == [1, 0, 0]
    assert wide.weight.dtype == torch.float32
    narrow = network()
    mixed = high_bytes_of(narrow, 40_000, autocast=torch.bfloat16)
    assert mixed < high_bytes_of(narrow, 40_000)
    how = {"device": "h100", "memory": mixed, "at_most": 40_000}
    big = torch.ones(40_000, 256, device="meta")
    assert largest_batch(narrow, big, precision="bf16", **how) == 40_000
    assert largest_batch(narrow, big, **how) < 40_000


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(InputError, match="unknown precision 'fp8'"):
        largest_batch(network(), torch.ones(8, 256), precision="fp8", **GPU)


def asked_precisions(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is asked for from now on, instead of an answer."""
    seen: list[Any] = []

    def answered(*args: Any, **settings: Any) -> int:
        seen.append(settings.get("precision"))
        return 7

    for name in ("batch_size", "lightning"):
        monkeypatch.setattr(f"neuralpower.integrations.{name}.size_or_own", answered)
    return seen


def test_lightnings_precision_is_read_from_its_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = asked_precisions(monkeypatch)
    trainer = SimpleNamespace(datamodule=None, precision="bf16-mixed")
    batch_size_callback().setup(trainer, Module(), "fit")
    batch_size_callback(precision="16-true").setup(trainer, Module(), "fit")
    batch_size_callback(autocast=torch.float16).setup(trainer, Module(), "fit")
    batch_size_callback().setup(SimpleNamespace(datamodule=None), Module(), "fit")
    assert seen == ["bf16-mixed", "16-true", None, None]


def test_accelerates_precision_is_read_from_its_state_or_its_launcher(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen, fitting = asked_precisions(monkeypatch), fitting_batch_size(network(), torch.ones(8, 256))
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp16")

    class State:
        _shared_state = {"_mixed_precision": "bf16"}
        mixed_precision = "bf16"

    with fitting as size:
        assert size == 7
    library = ModuleType("accelerate.state")
    library.AcceleratorState = State  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "accelerate.state", library)
    with fitting:
        pass
    assert seen == ["fp16", "bf16"]


# ---- Lightning ----


class Module(nn.Module):
    """A LightningModule's shape."""

    def __init__(self, data: bool = True) -> None:
        super().__init__()
        self.body, self.batch_size, self._data = network(), 16, data

    def log(self, *args: Any, **kwargs: Any) -> None:
        raise RuntimeError("no trainer is attached")

    def training_step(self, batch: tuple[Tensor, Tensor], number: int) -> Tensor:
        x, y = batch
        loss = nn.functional.cross_entropy(self.body(x), y)
        self.log("loss", loss)
        return loss

    def train_dataloader(self) -> list[tuple[Tensor, Tensor]]:
        if not self._data:
            raise NotImplementedError("train_dataloader")
        return [(torch.ones(self.batch_size, 256), torch.zeros(self.batch_size, dtype=torch.int64))]


def test_the_callback_sets_the_modules_size() -> None:
    module, before = Module(), set(vars(Module()))
    batch_size_callback(at_most=40, **GPU).setup(SimpleNamespace(datamodule=None), module, "fit")
    assert module.batch_size == 40
    assert set(vars(module)) == before
    assert all(one.grad is None and one.device.type == "cpu" for one in module.parameters())


def test_the_callback_sets_the_datas_size_in_their_hparams() -> None:
    module, hparams = Module(), {"batch_size": 8}
    del module.batch_size
    batch = (torch.ones(8, 256), torch.zeros(8, dtype=torch.int64))
    data = SimpleNamespace(hparams=hparams, train_dataloader=lambda: iter([batch]))
    batch_size_callback(at_most=40, **GPU).setup(SimpleNamespace(datamodule=data), module, "fit")
    assert hparams == {"batch_size": 40}


def test_only_a_fit_is_changed() -> None:
    module = Module()
    batch_size_callback(at_most=40, **GPU).setup(SimpleNamespace(), module, "validate")
    assert module.batch_size == 16


@pytest.mark.parametrize(
    ("attribute", "words"), [("batch_size", "no sample batch"), ("size", "attribute size")]
)
def test_the_callback_warns_and_goes_on(attribute: str, words: str) -> None:
    module = Module(data=False)
    with pytest.warns(UserWarning, match=words):
        batch_size_callback(attribute, **GPU).setup(SimpleNamespace(), module, "fit")
    assert module.batch_size == 16


@pytest.mark.parametrize("name", ["lightning.pytorch", "pytorch_lightning"])
def test_the_callback_is_one_of_the_library_that_is_imported(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Callback:
        def on_train_end(self) -> str:
            return "of the library"

    library = ModuleType(name)
    library.Callback = Callback  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, name, library)
    made = batch_size_callback()
    assert isinstance(made, Callback)
    assert made.on_train_end() == "of the library"
