"""`memory_format`: the same as a network and inputs that were made channels last."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import neuralpower
from neuralpower.errors import InputError
from tests.program import done, run

NET = "zoo:resnet18"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layers(x)
        return found


def last(prediction: neuralpower.Prediction) -> list[bool]:
    return [bool(getattr(row.layer, "channels_last", False)) for row in prediction.rows]


def test_it_is_the_same_as_a_network_that_was_made_so() -> None:
    plain = neuralpower.predict(Net(), (2, 8, 32, 32), device="h100")
    form = torch.channels_last
    made = Net().to(memory_format=form)
    own = neuralpower.predict(made, torch.ones(2, 8, 32, 32).contiguous(memory_format=form), device="h100")
    for inputs in ((2, 8, 32, 32), torch.ones(2, 8, 32, 32)):
        asked = neuralpower.predict(Net(), inputs, device="h100", memory_format="channels_last")
        assert asked.rows == own.rows and asked.runtime_s == own.runtime_s
    assert last(own) != last(plain)


def test_every_command_takes_it() -> None:
    how = ("--device", "h100", "--memory-format", "channels_last")
    found = json.loads(done("predict", NET, *how, "--json"))
    assert found["runtime_s"] != json.loads(done("predict", NET, "--device", "h100", "--json"))["runtime_s"]
    (point,) = json.loads(done("sweep", NET, *how, "--json"))["points"]
    assert point["runtime_s"] == found["runtime_s"]["value"]
    sides = json.loads(done("compare", NET, NET, *how, "--json"))
    assert sides["a"]["runtime_s"] == found["runtime_s"]
    assert done("fit", NET, *how, "--phase", "training")


def test_what_has_no_images_is_refused() -> None:
    ran = run("predict", "transformers:gpt2", "--device", "h100", "--memory-format", "channels_last")
    assert (ran.code, "has no convolution of images; leave it out" in ran.err) == (2, True)
    with pytest.raises(InputError, match="unknown memory format 'last': known: channels_last"):
        neuralpower.predict(Net(), (2, 8, 32, 32), device="h100", memory_format="last")
