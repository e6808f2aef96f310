"""The same question has the same answer: in any order, in one thread or several, whatever the caller set."""

from __future__ import annotations

import logging
import random
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

import neuralpower
from neuralpower.errors import ModelError
from neuralpower.networks.caches import REPEATS
from neuralpower.prediction.prediction import Prediction

SIZES = "num_hidden_layers=2&hidden_size=64&intermediate_size=128&num_attention_heads=4&vocab_size=100"
Ask = Callable[[], Any]


def _predict(model: Any, **how: Any) -> Ask:
    def ask() -> Any:
        found = neuralpower.predict(model, device="h100-sxm", **how)
        assert isinstance(found, Prediction)
        return found.runtime_s, found.flops, found.parameters, found.memory, found.rows

    return ask


def _convolutions() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.LazyLinear(4))


QUESTIONS: tuple[Ask, ...] = (
    _predict(f"transformers:LlamaForCausalLM?{SIZES}", dtype="bfloat16", phase="decode"),
    _predict(f"transformers:BertModel?{SIZES}", dtype="float32", batch_size=3),
    _predict(
        f"transformers:LlamaForCausalLM?{SIZES}&num_key_value_heads=2", dtype="bfloat16", phase="training"
    ),
    _predict("zoo:mnist_cnn", dtype="float16", batch_size=7),
    _predict("zoo:text_cnn", dtype="bfloat16", phase="training", batch_size=2),
    _predict(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval(), inputs=(2, 9, 32)),
)


def _globals() -> tuple[Any, ...]:
    """What all threads share, and a prediction changes for a while."""
    quieted = logging.getLogger("torch._subclasses.fake_tensor").level
    fast = torch.backends.mha.get_fastpath_enabled()
    connects = socket.getaddrinfo, socket.socket.connect
    states = random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()
    return torch.get_default_dtype(), sys.stdout, fast, *connects, quieted, list(sys.path), states


@pytest.fixture(scope="module")
def expected() -> list[Any]:
    return [ask() for ask in QUESTIONS]


@pytest.mark.parametrize("threads", [1, 8])
def test_any_order_of_questions_has_the_same_answers(threads: int, expected: list[Any]) -> None:
    order = [*range(len(QUESTIONS))] * 4
    random.Random(threads).shuffle(order)
    before = _globals()
    with ThreadPoolExecutor(threads) as pool:
        found = [*pool.map(lambda one: QUESTIONS[one](), order)]
    for one, answer in zip(order, found, strict=True):
        assert answer == expected[one]
    assert _globals() == before


def _counting() -> AbstractContextManager[Any]:
    return FlopCounterMode(display=False)


@contextmanager
def _wide_device() -> Iterator[None]:
    with torch.device("meta"):
        yield


@pytest.mark.parametrize(
    "around",
    [_counting, FakeTensorMode, _wide_device, lambda: torch.autocast("cpu", torch.bfloat16), torch.no_grad],
    ids=["counter", "fake", "device", "autocast", "no_grad"],
)
@pytest.mark.parametrize("first", [True, False])
def test_the_callers_modes_change_no_answer(around: Any, first: bool, expected: list[Any]) -> None:
    if first:
        REPEATS._seen.clear()  # as in a new process
    for inside in (around, nullcontext):
        with inside():
            assert [ask() for ask in QUESTIONS] == expected


def test_a_callers_counter_counts_its_own_work_alone() -> None:
    with _counting() as counter:
        QUESTIONS[0]()
        torch.ones(2, 3) @ torch.ones(3, 4)
    assert counter.get_total_flops() == 2 * 2 * 3 * 4


def test_a_network_that_another_thread_trains_is_refused() -> None:
    class Trained(nn.Module):
        """A network that is written to in the middle of its forward, as by another thread."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.weights = [self.layer.weight]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            def step() -> None:
                with torch.no_grad():
                    self.weights[0].add_(1)

            other = threading.Thread(target=step)
            other.start()
            other.join()
            return self.layer(x)

    with pytest.raises(ModelError, match=r"Trained was written to .* another thread trains it; give a copy"):
        neuralpower.predict(Trained(), (1, 4), device="h100-sxm")
