"""Every causal language model class of transformers: traced in forward, prefill and decode, or the reason.

python -m benchmarks.models [docs/models.md | CLASS...]     # half an hour for the page; CLASS prints its line

Each class is built from its default configuration, with as few layers as show every type of layer that it
has. Where the default widths ask for a real run, which random weights of that size would need memory for,
small widths are tried. Coverage is the share of all bytes that calls of known layer kinds move, over the
three phases; no predictor is asked.
"""

from __future__ import annotations

import resource
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neuralpower.errors import InputError, NeuralPowerError
from neuralpower.networks.decoder import Decoder
from neuralpower.networks.passes import Pass
from neuralpower.networks.running import WAYS
from neuralpower.networks.source import Source
from neuralpower.networks.sources import InputRequest, resolve
from neuralpower.trace.records import Trace
from neuralpower.trace.tracer import Asked, trace_by

LAYERS = (
    "num_hidden_layers",
    "num_layers",
    "n_layer",
    "n_layers",
    "decoder_layers",
    "encoder_layers",
    "num_decoder_layers",
    "num_encoder_layers",
)
SMALL = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "vocab_size": 1024,
    "num_experts": 8,
    "num_local_experts": 8,
    "n_routed_experts": 8,
}
OWN: dict[str, dict[str, str]] = {  # where the default configuration leaves out what the model needs
    "BambaForCausalLM": {"attn_layer_indices": "[1]"},
    "DeepseekV2ForCausalLM": {"num_experts_per_tok": "6"},
    "Dots1ForCausalLM": {"n_routed_experts": "16", "num_experts_per_tok": "4", "n_shared_experts": "1"},
    "GPTNeoForCausalLM": {"attention_types": '[[["global","local"],1]]'},
    "Gemma3nForCausalLM": {"num_hidden_layers": "10", "num_kv_shared_layers": "5"},
    "GraniteMoeHybridForCausalLM": {"layer_types": '["mamba","attention"]'},
    "HunYuanDenseV1ForCausalLM": {"head_dim": "128"},
    "HunYuanMoEV1ForCausalLM": {"head_dim": "128"},
    "Lfm2MoeForCausalLM": {"layer_types": '["conv","full_attention"]'},
    "MinistralForCausalLM": {"head_dim": "128"},
    "NemotronForCausalLM": {"num_key_value_heads": "48"},
    "RecurrentGemmaForCausalLM": {"num_hidden_layers": "3"},
    "XmodForCausalLM": {"default_language": "en_XX"},
    "Zamba2ForCausalLM": {"layers_block_type": '["mamba","mamba","mamba","mamba","mamba","mamba","hybrid"]'},
}
MOST_LAYERS = 12
MEMORY = 8 * 2**30  # B of address space: a constructor or a run that needs values of a large model ends there
PROMPT, CONTEXT = 32, 64


@dataclass(frozen=True)
class Outcome:
    """One class: how each phase was traced, or what it says instead."""

    name: str
    phases: tuple[str, str, str]
    cache: str
    coverage: float | None
    note: str

    @property
    def traced(self) -> bool:
        """Whether all three phases were."""
        return all(phase in dict(WAYS) for phase in self.phases)

    def line(self) -> str:
        """A row of the table."""
        covered = "-" if self.coverage is None else f"{self.coverage:.1%}"
        cells = (self.name, *self.phases, self.cache or "-", covered, self.note or "-")
        return f"| {' | '.join(cells)} |"


def classes() -> list[str]:
    """Names of all classes that AutoModelForCausalLM knows, in order of the alphabet."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    names: set[str] = set()
    for entry in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        names.update((entry,) if isinstance(entry, str) else entry)
    return sorted(names)


def outcome(name: str) -> Outcome:
    """Trace a class with its own widths, then, where that fails, with small ones."""
    try:
        shrunk = _shrunk(name, {})
    except Exception as error:
        return Outcome(name, ("-", "-", "-"), "", None, _reason(error))
    found = _traced(name, shrunk, WAYS[:2])
    if found.traced or "keeps none" in found.note:
        return found
    try:
        small = _traced(name, _shrunk(name, SMALL), WAYS)
    except Exception:
        return found
    if not small.traced and sum(p in dict(WAYS) for p in small.phases) <= sum(
        p in dict(WAYS) for p in found.phases
    ):
        return found
    return Outcome(
        name, small.phases, small.cache, small.coverage, f"small widths ({found.note}). {small.note}".strip()
    )


def _shrunk(name: str, widths: dict[str, int]) -> Source:
    """The source of a class with few layers, and with those of `widths` that its configuration has."""
    import transformers

    config: Any = getattr(transformers, name).config_class()
    overrides = dict(_changes(config, widths))
    changes = "&".join(f"{key}={value}" for key, value in {**overrides, **OWN.get(name, {})}.items())
    return resolve(f"transformers:{name}?{changes}" if changes else f"transformers:{name}")


def _changes(config: Any, widths: dict[str, int], prefix: str = "") -> Iterator[tuple[str, Any]]:
    values = config.to_dict()
    if getattr(config, "is_decoder", None) is False and not getattr(config, "is_encoder_decoder", False):
        yield prefix + "is_decoder", "true"  # an encoder by default
    for key in LAYERS:
        if isinstance(values.get(key), int) and values[key] > 2:
            yield prefix + key, _needed(values, values[key])
    for key, value in widths.items():
        if isinstance(values.get(key), int):
            yield prefix + key, value
    inner = getattr(config, "text_config", None)
    if inner is not None and hasattr(inner, "to_dict"):
        yield from _changes(inner, widths, prefix + "text_config.")


def _needed(values: dict[str, Any], layers: int) -> int:
    """The fewest layers that show every entry of lists per layer, and the first that is not dense."""
    needed = 2
    for entries in values.values():
        if isinstance(entries, (list, tuple)) and len(entries) == layers:
            kinds = [str(entry) for entry in entries]
            needed = max(needed, *(kinds.index(kind) + 1 for kind in set(kinds)))
    for key in ("first_k_dense_replace", "attn_layer_period", "expert_layer_period", "attn_layer_offset"):
        if isinstance(values.get(key), int):
            needed = max(needed, values[key] + 1)
    return min(needed, layers, MOST_LAYERS)


def _traced(name: str, source: Source, ways: Any) -> Outcome:
    """All three phases of one source."""
    request = InputRequest(1, PROMPT)
    methods, traces = [], []
    notes: list[str] = []
    failed: dict[str, list[str]] = {}  # phases by reason
    cache = ""
    try:
        module = source.build("meta")
    except Exception as error:
        return Outcome(name, ("-", "-", "-"), "", None, _reason(error))
    if any(not p.is_meta for p in module.parameters()) and len(ways) < len(WAYS):
        return Outcome(name, ("-", "-", "-"), "", None, "its constructor needs values")

    def forward() -> Pass:
        return Pass("forward", module, source.inputs(module, request))

    def prefill() -> Pass:
        return Decoder(module, request, "prefill", ways).prefill(PROMPT)

    def decode() -> Pass:
        nonlocal cache
        one = Decoder(module, request, "decode", ways).decode(CONTEXT)
        cache = type(one.cache).__name__
        return one

    for make in (forward, prefill, decode):
        try:
            one = make()
            found = trace_by(ways, one.module, Asked(one.inputs.args, one.inputs.kwargs))
        except Exception as error:
            methods.append("-")
            failed.setdefault(_reason(error, name), []).append(make.__name__)
            continue
        methods.append(found.method)
        notes += [_why(note) for note in found.notes]
        notes += [f"no kind for {u.operator.removeprefix('aten.')}" for u in found.unmodelled]
        traces.append(found)
    notes += [f"{', '.join(phases)}: {reason}" for reason, phases in failed.items()]
    text = "; ".join(dict.fromkeys(notes))
    return Outcome(name, (methods[0], methods[1], methods[2]), cache, _coverage(traces), text)


def _coverage(traces: Sequence[Trace]) -> float | None:
    known = sum(int(sum(layer.bytes())) for found in traces for layer in found.layers)
    missing = sum(call.bytes for found in traces for call in found.unmodelled)
    return known / (known + missing) if known + missing else None


def _why(note: str) -> str:
    return note.replace("|", "/")[:140]


def _reason(error: Exception, name: str = "") -> str:
    """The first sentence of an error, fit for a table's cell."""
    text = " ".join(str(error).split()).replace("|", "/")
    text = text.removeprefix(f"{name}: its forward raises ").replace(" while its cache is filled", "")
    if "DefaultCPUAllocator" in text:
        return f"cannot be built on the meta device, nor on the CPU within {MEMORY // 2**30} GiB"
    if isinstance(error, InputError) and "has none, like any encoder" in text:
        return "keeps no cache"
    if not isinstance(error, NeuralPowerError):
        text = f"{type(error).__name__}: {text}"
    return text.split("; ")[0][:160]


LIMITS = """## Limits

A network of more than 100,000 modules or 10^13 parameters is refused while it is built. A pass of more than a
million operator calls is refused while it is traced. So a typing error does not fill the memory.
`NEURALPOWER_MOST_MODULES`, `NEURALPOWER_MOST_PARAMETERS` and `NEURALPOWER_MOST_CALLS` set other limits. If a
model's code raises an error, or calls `sys.exit`, the command prints one line and exits with 2.
"""


def page(outcomes: Sequence[Outcome]) -> str:
    """The document."""
    import transformers

    version = transformers.__version__.rpartition(".")[0]
    complete = sum(o.traced for o in outcomes)
    partly = sum(not o.traced and any(p in dict(WAYS) for p in o.phases) for o in outcomes)
    return "\n".join(
        [
            "# Language models that are traced",
            "",
            f"Can neuralpower trace your language model? This page lists all {len(outcomes)} classes of "
            f"`AutoModelForCausalLM` in transformers {version}, in their default configurations "
            f"with few layers: **{complete} traced in forward, prefill and decode**, "
            f"{partly} in some of these, {len(outcomes) - complete - partly} not at all. "
            "`python -m benchmarks.models docs/models.md` writes this page.",
            "",
            "The columns of phases name the way of tracing: meta, fake, or cpu. Coverage is the share of all "
            "bytes that layer kinds describe.",
            "",
            "| class | forward | prefill | decode | cache | coverage | note |",
            "|---|---|---|---|---|---|---|",
            *(o.line() for o in outcomes),
            "",
            LIMITS,
        ]
    )


def main() -> None:
    """Write the page, or print the lines of some classes."""
    warnings.simplefilter("ignore")
    import transformers

    transformers.logging.set_verbosity_error()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    given = sys.argv[1:]
    target = next((Path(a) for a in given if a.endswith(".md")), None)
    outcomes = []
    for name in [a for a in given if not a.endswith(".md")] or classes():
        outcomes.append(outcome(name))
        print(outcomes[-1].line(), file=sys.stderr if target else sys.stdout, flush=True)
    if target is not None:
        target.write_text(page(outcomes), encoding="utf-8")


if __name__ == "__main__":
    main()
