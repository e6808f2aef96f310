"""Networks on token ids: a recurrent language model and a convolutional sentence classifier.

The language model has the sizes of the medium network of Zaremba and others (arXiv 1409.2329), the classifier
those of Kim (arXiv 1408.5882).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from neuralpower.networks.zoo.base import ExampleInputs, zoo_model
from neuralpower.networks.zoo.blocks import named

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
