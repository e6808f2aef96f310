"""Recurrences written as a loop in Python, one step after the other: cells, scans and attention at each step.

Cells of PyTorch, a selective scan (arXiv 2312.00752), an average that decays by channel (2305.13048), and a
decoder that looks at all states before each step (1409.0473).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from neuralpower.errors import ModelError, unknown
from neuralpower.networks.zoo.base import zoo_model

INPUTS, CLASSES = 64, 100


class Cell(nn.Module):
    """A cell of PyTorch over x [batch, steps, width]."""

    def __init__(self, width: int, cell: type[nn.RNNCellBase]) -> None:
        super().__init__()
        self.cell = cell(width, width)  # type: ignore[call-arg]  # of the classes

    def forward(self, x: Tensor) -> Tensor:
        """Features [batch, steps, width] -> the same shape."""
        state = x.new_zeros(x.shape[0], x.shape[2])
        memory, outputs = state, []
        for step in range(x.shape[1]):
            if isinstance(self.cell, nn.LSTMCell):
                state, memory = self.cell(x[:, step], (state, memory))
            else:
                state = self.cell(x[:, step], state)
            outputs.append(state)
        return torch.stack(outputs, dim=1)


class Joined(nn.Module):
    """One linear layer over the input and the state of the step before."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Features [batch, steps, width] -> the same shape."""
        state, outputs = x.new_zeros(x.shape[0], x.shape[2]), torch.empty_like(x)
        for step in range(x.shape[1]):
            state = torch.tanh(self.linear(torch.cat([x[:, step], state], dim=-1)))
            outputs[:, step] = state
        return outputs


class Scan(nn.Module):
    """States of STATES numbers for each channel, which decay and grow as the input says."""

    STATES = 16

    def __init__(self, width: int) -> None:
        super().__init__()
        self.rates = nn.Parameter(torch.rand(width, self.STATES))
        self.project = nn.Linear(width, 2 * self.STATES + width)

    def forward(self, x: Tensor) -> Tensor:
        """Features [batch, steps, width] -> the same shape."""
        given, read, pace = self.project(x).split([self.STATES, self.STATES, x.shape[2]], dim=-1)
        pace = nn.functional.softplus(pace)
        kept = torch.exp(-pace.unsqueeze(-1) * self.rates)
        grown = (pace * x).unsqueeze(-1) * given.unsqueeze(2)
        state, outputs = x.new_zeros(x.shape[0], x.shape[2], self.STATES), []
        for step in range(x.shape[1]):
            state = kept[:, step] * state + grown[:, step]
            outputs.append(torch.einsum("bds,bs->bd", state, read[:, step]))
        return torch.stack(outputs, dim=1)


class Decayed(nn.Module):
    """An average of values, weighted by exponentials of keys, that decays by channel and cannot overflow."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.decay, self.first = nn.Parameter(torch.rand(width)), nn.Parameter(torch.rand(width))
        self.both = nn.Linear(width, 2 * width)

    def forward(self, x: Tensor) -> Tensor:
        """Features [batch, steps, width] -> the same shape."""
        keys, values = self.both(x).chunk(2, dim=-1)
        above, below = x.new_zeros(2, x.shape[0], x.shape[2])
        largest, outputs = torch.full_like(above, -1e30), []
        for step in range(x.shape[1]):
            key, value = keys[:, step], values[:, step]
            most = torch.maximum(largest, self.first + key)
            old, new = torch.exp(largest - most), torch.exp(self.first + key - most)
            outputs.append((old * above + new * value) / (old * below + new))
            most = torch.maximum(largest - self.decay, key)
            old, new = torch.exp(largest - self.decay - most), torch.exp(key - most)
            above, below, largest = old * above + new * value, old * below + new, most
        return torch.stack(outputs, dim=1)


class Looking(nn.Module):
    """A cell that is given, at each step, what its state attends to among all inputs."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.score = nn.Linear(width, 1)
        self.cell = nn.GRUCell(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Features [batch, steps, width] -> the same shape."""
        keys, state, outputs = self.key(x), x.new_zeros(x.shape[0], x.shape[2]), []
        for step in range(x.shape[1]):
            scores = self.score(torch.tanh(keys + self.query(state).unsqueeze(1))).squeeze(-1)
            seen = torch.bmm(torch.softmax(scores, dim=-1).unsqueeze(1), x).squeeze(1)
            state = self.cell(torch.cat([x[:, step], seen], dim=-1), state)
            outputs.append(state)
        return torch.stack(outputs, dim=1)


LOOPS = {
    "lstm": lambda width: Cell(width, nn.LSTMCell),
    "gru": lambda width: Cell(width, nn.GRUCell),
    "joined": Joined,
    "scan": Scan,
    "decayed": Decayed,
    "looking": Looking,
}


class Stepwise(nn.Module):
    """Blocks of a loop over time and what stands between, and classes of each step."""

    def __init__(self, loop: str, width: int, layers: int) -> None:
        super().__init__()
        self.stem = nn.Linear(INPUTS, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.loops = nn.ModuleList(LOOPS[loop](width) for _ in range(layers))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Input [batch, steps, 64] -> [batch, steps, classes]."""
        x = self.stem(x)
        for norm, loop in zip(self.norms, self.loops, strict=True):
            x = x + loop(norm(x))
        scores: Tensor = self.head(x)
        return scores


@zoo_model(
    "stepwise",
    title="Recurrence step by step",
    input_shape=(32, INPUTS),
    classes=CLASSES,
    example_inputs=lambda batch_size, steps=32: (torch.randn(batch_size, steps, INPUTS),),
    sweep={
        "loop": tuple(LOOPS),
        "width": (32, 64, 96, 128, 192, 256, 384, 512),
        "layers": (1, 2, 3),
        "steps": (12, 16, 24, 32, 48, 64),
        "batch_size": (1, 1, 2, 4, 8),
    },
)
def stepwise(loop: str = "lstm", width: int = 128, layers: int = 1, steps: int = 32) -> nn.Module:
    """Signals [batch, steps, 64] -> [batch, steps, classes]; `steps` is of the inputs alone.

    Raises:
        ModelError: no such loop.
    """
    if loop not in LOOPS:
        raise unknown("loop", loop, LOOPS, ModelError)
    return Stepwise(loop, width, layers)
