"""Labels of a training step: with them a network of transformers gives its own loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from neuralpower.networks.inputs.arguments.forward import CHOICES, Forward

NOTE = "the loss is the network's own, with made-up labels"
USUAL_CLASSES = 2  # of transformers' configurations

Given = Mapping[str, Tensor]
Labels = dict[str, Tensor]


def labels_of(forward: Forward, made: Given) -> Labels:
    """The labels for inputs that were made; none where the class takes none, or is of no known task."""
    make = next((make for ending, make in TASKS.items() if ending in forward.name), None)
    found = {} if make is None else make(forward, made)
    return found if found.keys() <= forward.parameters.keys() else {}


def _next_tokens(forward: Forward, made: Given) -> Labels:
    """The tokens [batch, tokens] that a language model has to predict."""
    text = made.get("decoder_input_ids", made.get("input_ids"))
    vocabulary = getattr(forward.text, "vocab_size", None) or forward.integer("vocab_size")
    if text is None or text.dim() != 2 or vocabulary is None:  # images alone, or several texts a sample
        return {}
    return {"labels": forward.below(vocabulary, text.shape[1])}


def _classes(forward: Forward, made: Given) -> Labels:
    """The class [batch] of each sample, or its value where there is one class."""
    classes = _count(forward)
    return {"labels": forward.below(classes) if classes > 1 else forward.floats()}


def _classes_of_tokens(forward: Forward, made: Given) -> Labels:
    """The class [batch, tokens] of each token."""
    text = made.get("input_ids")
    return {} if text is None else {"labels": forward.below(_count(forward), text.shape[1])}


def _choice(forward: Forward, made: Given) -> Labels:
    """The right one [batch] of the choices."""
    return {"labels": forward.below(CHOICES)}


def _span(forward: Forward, made: Given) -> Labels:
    """The first and last token [batch] of the answer."""
    text = made.get("input_ids")
    if text is None:
        return {}
    return {name: forward.below(text.shape[1]) for name in ("start_positions", "end_positions")}


def _classes_of_pixels(forward: Forward, made: Given) -> Labels:
    """The class [batch, height, width] of each pixel."""
    image = made.get("pixel_values")
    return {} if image is None else {"labels": forward.below(_count(forward), *image.shape[-2:])}


def _count(forward: Forward) -> int:
    return int(getattr(forward.config, "num_labels", None) or USUAL_CLASSES)


# what is in the name of a class -> what makes its labels
TASKS: Mapping[str, Callable[[Forward, Given], Labels]] = {
    "ForCausalLM": _next_tokens,
    "LMHeadModel": _next_tokens,
    "ForMaskedLM": _next_tokens,
    "ForConditionalGeneration": _next_tokens,
    "ForSequenceClassification": _classes,
    "ForImageClassification": _classes,
    "ForTokenClassification": _classes_of_tokens,
    "ForMultipleChoice": _choice,
    "ForNextSentencePrediction": _choice,
    "ForQuestionAnswering": _span,
    "ForSemanticSegmentation": _classes_of_pixels,
}
