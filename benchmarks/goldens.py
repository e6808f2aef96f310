"""Hashes of many answers: a change that only moves code leaves all of them equal.

    python -m benchmarks.goldens keep FILE                all questions, about an hour
    python -m benchmarks.goldens keep FILE --share 0.1    a seeded tenth
    python -m benchmarks.goldens check FILE               asks again what the file holds; prints what changed
    python -m benchmarks.goldens statements               statements of each package

A question is a network, a phase and devices. Its answer is the JSON of a prediction: layers, times,
power, memory by part, passes and assumptions, with numbers to nine digits; a refusal is its words.
Hashes hold on one machine with one set of libraries alone: keep them before a change, and check them
after it.
"""

from __future__ import annotations

import ast
import hashlib
import json
import random
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

import neuralpower
from neuralpower.errors import NeuralPowerError

ROOT = Path(__file__).resolve().parents[1]
DEVICES = ("h100-sxm", "rtx-4090", "amd-epyc-2c")
PHASES = ("forward", "training", "prefill", "decode")
VISION = "alexnet vgg16 resnet18 resnet50 mobilenet_v2 googlenet deep_mnist"
TYPES = """
    bert distilbert roberta albert electra deberta-v2 mpnet t5 bart pegasus marian vit deit beit swin
    convnext resnet segformer detr clip blip whisper wav2vec2 hubert llama mistral gemma qwen2 gpt2
    gpt_neo gptj gpt_neox opt bloom falcon phi mamba mixtral longformer big_bird funnel xlnet perceiver
    data2vec-text squeezebert mobilebert regnet levit mobilevit efficientnet dinov2 yolos glpn dpt
    poolformer pvt cvt
"""
NAMED = """
    gpt2 gpt2-xl opt-125m opt-6.7b pythia-1.4b qwen2.5-0.5b qwen2.5-7b qwen3-0.6b qwen3-8b qwen3-30b-a3b
    llama-3.1-8b llama-3.1-70b llama-3.2-1b mistral-7b mixtral-8x7b gemma-2-2b gemma-2-9b gemma-3-1b
    gemma-3-4b phi-2 phi-3-mini phi-4 olmo-2-7b olmoe-1b-7b smollm2-135m smollm3-3b stablelm-2-1.6b
    starcoder2-15b falcon-7b deepseek-v2-lite deepseek-v3 gpt-oss-20b granite-3.1-1b-a400m
    granite-4.0-h-small lfm2-1.2b mamba-130m mamba2-2.7b nemotron-nano-9b-v2 qwen3-next-80b-a3b
    jamba-1.5-mini command-r7b exaone-4.0-32b glm-4-9b internlm3-8b bloom-7b1 gpt-j-6b gpt-neox-20b
    ernie-4.5-0.3b minimax-m2 kimi-k2 llama-4-scout dots.llm1 seed-oss-36b
"""
LAYOUTS: tuple[dict[str, int], ...] = ({}, {"tensor": 2}, {"data": 2}, {"pipeline": 2})

app = typer.Typer(add_completion=False)


def questions() -> Iterator[dict[str, Any]]:
    """Each network in each phase on each device, and the language models on two devices."""
    models = [
        *(f"zoo:{name}" for name in VISION.split()),
        *(f"transformers:{name}" for name in TYPES.split()),
    ]
    for model in (*models, *NAMED.split()):
        for phase in PHASES:
            for device in DEVICES:
                yield {"model": model, "phase": phase, "device": device}
    for model in NAMED.split()[::4]:
        for layout in LAYOUTS[1:]:
            yield {"model": model, "phase": "decode", "device": "h100-sxm", "layout": layout}


def answer(question: Mapping[str, Any]) -> Any:
    """The JSON of a prediction, or the words of its refusal."""
    options = {"phase": question["phase"], "device": question["device"]}
    if "layout" in question:
        options["layout"] = neuralpower.Layout(**question["layout"])
        options["devices"] = f"2x{options.pop('device')}"
    try:
        return neuralpower.predict(question["model"], **options).to_json()
    except NeuralPowerError as error:
        return str(error)


def rounded(value: Any) -> Any:
    """The value with numbers to nine digits, which sums in another order leave equal."""
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, Mapping):
        return {key: rounded(entry) for key, entry in value.items()}
    return [rounded(entry) for entry in value] if isinstance(value, (list, tuple)) else value


def parts(question: Mapping[str, Any]) -> dict[str, str]:
    """A hash of each part of an answer: what changed is then told by its name."""
    found = rounded(answer(question))
    entries = found if isinstance(found, dict) else {"refusal": found}
    return {
        name: hashlib.sha256(json.dumps(entry, sort_keys=True, default=str).encode()).hexdigest()[:16]
        for name, entry in entries.items()
    }


@app.command()
def keep(
    file: Path,
    share: Annotated[float, typer.Option(help="Part of the questions.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of the part.")] = 0,
) -> None:
    """Ask, and write the hashes."""
    asked = list(questions())
    chosen = random.Random(seed).sample(asked, round(len(asked) * share))
    with file.open("w", encoding="utf-8") as lines:
        for question in chosen:
            lines.write(json.dumps({"question": question, "parts": parts(question)}) + "\n")
            lines.flush()
    print(f"{len(chosen)} answers in {file}")


@app.command()
def check(file: Path) -> None:
    """Ask again; exit 1 where an answer changed."""
    kept = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    changed: Counter[str] = Counter()
    for entry in kept:
        before, now = entry["parts"], parts(entry["question"])
        names = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
        changed.update(names)
        if names:
            print(f"{' '.join(map(str, entry['question'].values()))}: {', '.join(names)}")
    print(f"{len(kept)} answers compared; {sum(changed.values())} parts changed {dict(changed) or ''}")
    raise typer.Exit(1 if changed else 0)


@app.command()
def statements() -> None:
    """Count statements and lines of each package."""
    total = [0, 0, 0]
    for package in sorted(path for path in (ROOT / "neuralpower").iterdir() if path.suffix != ".pyc"):
        files = sorted(package.rglob("*.py")) if package.is_dir() else [package] * (package.suffix == ".py")
        texts = [file.read_text(encoding="utf-8") for file in files]
        counts = [
            sum(isinstance(node, ast.stmt) for text in texts for node in ast.walk(ast.parse(text))),
            sum(text.count("\n") for text in texts),
            len(texts),
        ]
        total = [before + more for before, more in zip(total, counts, strict=True)]
        if texts:
            print(f"{package.name:<16}{counts[0]:>8}{counts[1]:>8} lines {counts[2]:>5} files")
    print(f"{'neuralpower':<16}{total[0]:>8}{total[1]:>8} lines {total[2]:>5} files")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.setrecursionlimit(10_000)
    app()
