"""Networks of sequences: recurrent and convolutional ones of tokens, and recurrences written as loops."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from neuralpower.errors import ModelError, unknown
from neuralpower.networks.zoo.base import ExampleInputs, zoo_model
from neuralpower.networks.zoo.blocks import named

# Networks on token ids: a recurrent language model and a convolutional sentence classifier.
#
# The language model has the sizes of the medium network of Zaremba and others (arXiv 1409.2329), the
# classifier those of Kim (arXiv 1408.5882).

LANGUAGE_VOCABULARY, LANGUAGE_STEPS = 10_000, 35
SENTENCE_VOCABULARY, SENTENCE_WORDS = 20_000, 56


def token_inputs(vocabulary: int, length: int) -> ExampleInputs:
    """A function that makes token ids [batch_size, seq_len]."""

    def inputs(batch_size: int, seq_len: int = length) -> tuple[Tensor, ...]:
        return (torch.randint(vocabulary, (batch_size, seq_len)),)

    return inputs


class LanguageModel(nn.Module):
    """Embedding, recurrent layers of its width, and scores of every next token."""

    def __init__(self, vocabulary: int, width: int, layers: int, cell: type[nn.RNNBase] = nn.LSTM) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.recurrent = cell(width, width, layers, batch_first=True)  # type: ignore[arg-type]
        self.scores = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens [batch, steps] -> [batch, steps, vocabulary]."""
        states, _ = self.recurrent(self.embedding(tokens))
        scores: Tensor = self.scores(states)
        return scores


class TextCnn(nn.Module):
    """Embedding, convolutions of several lengths over the words, their maxima over time, one linear layer."""

    def __init__(
        self, vocabulary: int, width: int, lengths: tuple[int, ...], maps: int, classes: int
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.convolutions = nn.ModuleList(
            named(
                convolution=nn.Conv1d(width, maps, length),
                activation=nn.ReLU(inplace=True),
                pool=nn.AdaptiveMaxPool1d(1),
                flatten=nn.Flatten(),
            )
            for length in lengths
        )
        self.classifier = named(dropout=nn.Dropout(), linear=nn.Linear(maps * len(lengths), classes))

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens [batch, words] -> [batch, classes]."""
        words = self.embedding(tokens).transpose(1, 2)
        scores: Tensor = self.classifier(
            torch.cat([convolution(words) for convolution in self.convolutions], dim=1)
        )
        return scores


@zoo_model(
    "lstm_language_model",
    title="LSTM language model",
    input_shape=(LANGUAGE_STEPS,),
    classes=LANGUAGE_VOCABULARY,
    example_inputs=token_inputs(LANGUAGE_VOCABULARY, LANGUAGE_STEPS),
)
def lstm_language_model(classes: int = LANGUAGE_VOCABULARY, width: int = 650, layers: int = 2) -> nn.Module:
    """Tokens [batch, steps] -> [batch, steps, classes]."""
    return LanguageModel(classes, width, layers)


@zoo_model(
    "text_cnn",
    title="TextCNN",
    input_shape=(SENTENCE_WORDS,),
    classes=2,
    example_inputs=token_inputs(SENTENCE_VOCABULARY, SENTENCE_WORDS),
)
def text_cnn(classes: int = 2) -> nn.Module:
    """Tokens [batch, words] -> [batch, classes]; 100 maps each over 3, 4 and 5 words."""
    return TextCnn(SENTENCE_VOCABULARY, 300, (3, 4, 5), 100, classes)


# Recurrences written as a loop in Python, one step after the other: cells, scans and attention at each step.
#
# Cells of PyTorch, a selective scan (arXiv 2312.00752), an average that decays by channel (2305.13048), and
# a decoder that looks at all states before each step (1409.0473).

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
