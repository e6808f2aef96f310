"""A network by name trains on its own loss, with made-up labels."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import neuralpower
from neuralpower.networks.inputs.arguments.forward import NOTE
from neuralpower.networks.sources import InputRequest, resolve

SMALL = "num_hidden_layers=1&hidden_size=32&num_attention_heads=2&intermediate_size=64"
TASKS = {
    f"transformers:BertForMaskedLM?{SMALL}": {"labels": (2, 16)},
    f"transformers:BertForSequenceClassification?{SMALL}": {"labels": (2,)},
    f"transformers:BertForTokenClassification?{SMALL}": {"labels": (2, 16)},
    f"transformers:BertForMultipleChoice?{SMALL}": {"labels": (2,)},
    f"transformers:BertForNextSentencePrediction?{SMALL}": {"labels": (2,)},
    f"transformers:BertForQuestionAnswering?{SMALL}": {"start_positions": (2,), "end_positions": (2,)},
    "transformers:GPT2LMHeadModel?n_layer=1&n_embd=32&n_head=2": {"labels": (2, 16)},
    f"transformers:LlamaForCausalLM?{SMALL}&num_key_value_heads=2": {"labels": (2, 16)},
    "transformers:T5ForConditionalGeneration?num_layers=1&d_model=32": {"labels": (2, 16)},
}
OF_IMAGES = {
    f"transformers:ViTForImageClassification?{SMALL}": {"labels": (2,)},
    "transformers:SegformerForSemanticSegmentation": {"labels": (2, 224, 224)},
}


@pytest.mark.parametrize("model", [*TASKS, *OF_IMAGES])
def test_labels_are_made_for_a_training_step_and_torch_takes_them(model: str) -> None:
    wanted = (TASKS | OF_IMAGES)[model]
    source = resolve(model)
    module = source.build("cpu")
    request = InputRequest(2, 16 if model in TASKS else None)
    plain = source.inputs(module, request)
    made = source.inputs(module, InputRequest(2, request.seq_len, labels=True))
    labels: dict[str, Any] = {name: made.kwargs[name] for name in made.kwargs.keys() - plain.kwargs.keys()}
    assert {name: tuple(label.shape) for name, label in labels.items()} == wanted
    assert (made.note, plain.note) == (NOTE, "")
    with torch.no_grad():
        loss = module(**made.kwargs).loss  # torch refuses a label that is no class
    assert loss.dim() == 0 and torch.isfinite(loss)


@pytest.mark.parametrize(
    "model", ["transformers:BertModel", "transformers:ViTModel", "transformers:DPTForDepthEstimation"]
)
def test_a_class_without_a_known_loss_of_its_own_gets_no_labels(model: str) -> None:
    source = resolve(model)
    made = source.inputs(source.build(), InputRequest(1, labels=True), "meta")
    assert made.note == "" and "labels" not in made.kwargs


def tensors(vocabulary: int, batch: int) -> int:
    """Bytes of tensors at the peak of a step of a small language model in bfloat16."""
    model = f"transformers:GPT2LMHeadModel?n_layer=1&n_embd=32&n_head=2&vocab_size={vocabulary}"
    how: dict[str, Any] = {"device": "h100", "optimizer": "sgd", "dtype": "bfloat16"}
    return neuralpower.memory(model, batch_size=batch, seq_len=64, **how).tensor_bytes


def test_a_logit_of_a_training_step_takes_14_bytes() -> None:
    # In bfloat16 the logit itself (2); in float32 its logarithmic softmax (4), which is kept, that one's
    # gradient (4), and the logit's own (4). A second difference leaves weights and activations out.
    (a, b), (c, d) = (3000, 6000), (2, 6)
    second = (tensors(b, d) - tensors(b, c)) - (tensors(a, d) - tensors(a, c))
    assert second / ((b - a) * (d - c) * 64) == pytest.approx(14, rel=0.002)


def test_the_answer_says_what_the_loss_is() -> None:
    model = "transformers:GPT2LMHeadModel?n_layer=1&n_embd=32&n_head=2"
    found = neuralpower.predict(model, (2, 16), device="h100", phase="training")
    assert NOTE in found.assumptions
    assert found.unmodelled == ()
    assert NOTE not in neuralpower.predict(model, (2, 16), device="h100").assumptions
    assert NOTE in neuralpower.fit(model, device="h100", phase="training", seq_len=16).notes
    own = neuralpower.predict(model, {"input_ids": (2, 16)}, device="h100", phase="training")
    assert NOTE not in own.assumptions  # the caller's inputs are as they are


def test_what_a_loss_picks_is_read_alone_and_its_gradient_fills_all_logits() -> None:
    model = "transformers:BertForMaskedLM?num_hidden_layers=0&hidden_size=32&num_attention_heads=2"
    found = neuralpower.predict(model, batch_size=2, seq_len=16, device="h100", phase="training")
    moved = [row for row in found.rows if row.layer is not None and row.path == "" and row.kind == "movement"]
    sizes = [(row.step, row.layer.function, row.layer.elements) for row in moved]  # type: ignore[union-attr]
    labels, classes = 2 * 16, 30522
    assert ("forward", "gather", labels) in sizes and ("backward", "scatter", labels) in sizes
    assert ("backward", "fill", labels * classes) in sizes
