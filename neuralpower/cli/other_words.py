"""Words of other tools for commands and options, and the command line that says the same here."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest

from neuralpower.ask.words import WEIGHTS

_COMMANDS = {
    "train training finetune fine-tune": "predict --phase training",
    "serve simulate load": "traffic",
    "fps latency speed estimate throughput flops run infer inference": "predict",
    "summary info params parameters macs count analyze analyse energy power watts joules": "predict",
    "roofline layers bottleneck": "predict --by layer",
    "memory mem vram fits oom max-batch maxbatch max-batch-size batch-size max-context kv-cache": "fit",
    "lora qlora": "fit --phase training --lora 16",
    "cost price": "predict --price 2.49",
    "carbon co2 emissions": "predict --region germany",
    "accuracy errors validate": "evaluate",
    "capacity": "plan",
    "gpus gpu specs device hardware": "devices --specs",
    "list search model zoo": "models",
    "plot chart picture draw": "predict --plot page.html",
    "video image generate chat": "predict",
    "vllm": "fit --engine vllm",
    "sglang": "fit --engine sglang",
    "best cheapest recommend choose": "rank",
    "shard layout tp": "parallel",
    "ui gui app page dashboard": "web",
    "grid scan": "sweep",
    "diff vs": "compare",
    "check-regression regress ci": "gate",
    "trace": "explain",
    "selftest self-test check env info-system": "doctor",
    "cite citation bibtex --cite": "--version",
}
"""What people call it -> a command, and the options that say the same."""
_OPTIONS = {
    "--batch --bs --batchsize": "--batch-size {}",
    "--tp --tp-size --tensor-parallel-size": "--tensor-parallel {}",
    "--pp --pp-size --pipeline-parallel-size": "--pipeline-parallel {}",
    "--dp --dp-size --data-parallel-size": "--data-parallel {}",
    "--ep --ep-size --expert-parallel-size": "--expert-parallel {}",
    "--qps --rps --request-rate --requests-per-second": "--rate {}",
    "--concurrency --clients --max-concurrency --users": "--users {} --concurrency {} --batch-size {}",
    "--slo --goodput --target": "--sla {}",
    "--ttft --slo-ttft --sla-ttft --max-ttft": "--sla ttft={}@p95",
    "--tpot --slo-tpot --sla-tpot --max-tpot --itl --slo-itl": "--sla tpot={}@p95",
    "--latency --slo-latency --max-latency": "--max-latency {} --sla latency={}@p95",
    "--amp --mixed-precision": "--autocast bfloat16",
    "--precision --data-type --torch-dtype": "--dtype {}",
    "--fp16 --half --float16": "--dtype float16",
    "--bf16 --bfloat16": "--dtype bfloat16",
    "--int8 --load-in-8bit": "--weights int8",
    "--int4 --load-in-4bit": "--weights int4",
    "--fp8": "--weights fp8",
    "--quant --quantization --quantize": "--weights {}",
    "--width --height --size --image-size --imgsz --img-size": "--resolution {}",
    "--num-steps --num-inference-steps": "--steps {}",
    "--gpu --gpus --hardware --accelerator --devices --device": "--device {} --devices {}",
    "--dataset-size --num-samples": "--samples {}",
    "--epochs": "--samples {}*IMAGES",
    "--vram --gpu-memory --memory-limit": "--memory {}",
    "--throughput --min-throughput": "--rate {}",
    "--num-frames --length": "--frames {} --seq-len {}",
    "--seq --seqlen --sequence-length --max-length --max-seq-len": "--seq-len {} --context {}",
    "--bounds --confidence --error --uncertainty --interval --summary --all": "",
    "--metric --sort --rank-by --order-by": "--by {}",
    "--input-len --isl --prompt-len --input-tokens --prompt": "--input {} --prompt {}",
    "--output-len --osl --max-tokens --output-tokens --output --new-tokens": "--output {} --new-tokens {}",
    "--ctx --context-length --max-model-len": "--context {} --max-model-len {}",
    "--draft-model --speculative-model --assistant-model": "--draft {}",
    "--num-speculative-tokens --speculative-tokens": "--draft-tokens {}",
    "--cost": "--price {}",
    "--carbon --country --zone": "--region {}",
    "--type": "--task {}",
    "--input-size": "--input-shape {}",
    "--model": "{}",
}
"""Options of other tools -> what says the same here; the first that the command has; "": always printed."""
_IMPLIED = {
    "--new-tokens --prompt": "--phase generate",
    "--context": "--phase decode",
    "--samples": "--phase training",
    "--concurrency": "--engine vllm",
}
"""Options -> what they need besides, where the command has it and nothing is said of it."""
_NEEDED = {"traffic": ("--rate --users --trace --sla", "--rate 4")}
"""Commands -> options of which they need one, and an example of it."""
_JOINED = {"--sla": ",", "--resolution": "x", "--device": ","}
"""Options that take several values, and what stands between them."""

WAYS = {word: way for names, way in (_COMMANDS | _OPTIONS).items() for word in names.split()}
Options = Callable[[str], "set[str]"]  # of the command of that name


def said_here(
    arguments: Sequence[str],
    refused: str,
    commands: Iterable[str],
    options: Options,
    is_model: Callable[[str], bool] = lambda text: False,
    own: bool = True,
) -> str:
    """The command line with the words of this program; "" where it has none for the refused option.

    What no word here says, such as a budget among other words, is omitted, and named. `refused`: "" of a
    command. `own`: the line was typed; the same line is "".
    """
    if not arguments:
        return ""
    first, *rest = arguments
    if WAYS.get(first) == "--version":
        return "neuralpower --version"
    if first not in commands and first not in WAYS:
        if not is_model(first):
            return ""
        first, rest = "predict", [*arguments]
    name, *more = [first] if first in commands else WAYS[first].split()
    several = len(_values(rest, "--device", "--devices")) > 1
    if name == "compare" and several:
        name = "rank"
    known = options(name)
    if refused and not _way(refused, ["1"], known) and WAYS.get(refused) != "":
        return ""
    words: list[str] = []
    omitted: list[str] = []
    taken: dict[str, list[str]] = {}
    for option, values in _asked(rest, known, several=several):
        way = [option, *values] if not option or option in known else _way(option, values, known)
        if way and way[0].startswith("-") and way[0] in rest and option not in known:
            way = []
        if not way and WAYS.get(option) != "":
            omitted.append(option)
        if way and way[0] in _JOINED:
            taken.setdefault(way[0], []).extend(way[1:])
        else:
            words += [word for word in way if word]
    for option, values in taken.items():
        words += [option, _JOINED[option].join(values)]
    if (not words or words[0].startswith("-")) and known & {"model", "models"}:
        words.insert(0, "MODEL")
    words += _besides(name, words, more, known)
    line = [name, *words]
    without = f" (nothing here says {', '.join(omitted)})" if omitted else ""
    return "" if own and line == [*arguments] else shlex.join(["neuralpower", *line]) + without


def _besides(name: str, words: Sequence[str], more: Sequence[str], known: set[str]) -> Iterator[str]:
    """Options that a line lacks: `more`, those that its options imply, and those that its command needs."""
    ways = [*more]
    for names, way in _IMPLIED.items():
        ways += way.split() if {*names.split()} & {*words} else []
    if name in _NEEDED and not {*_NEEDED[name][0].split()} & {*words}:
        ways += _NEEDED[name][1].split()
    said = {*words}
    for option, value in zip_longest(ways[::2], ways[1::2]):
        if option in known and option not in said:
            said.add(option)
            yield from (option, value) if value else (option,)


def _asked(rest: Sequence[str], known: set[str], *, several: bool) -> Iterator[tuple[str, list[str]]]:
    """(option, its values) of a command line, in order; "" as the option of other words."""
    words = [part for word in rest for part in (word.split("=", 1) if word.startswith("--") else [word])]
    while words:
        word = words.pop(0)
        if not word.startswith("-"):
            yield "", [word]
            continue
        values: list[str] = []
        most = len(words) if several and word in ("--device", "--devices") else 1
        flag = "{}" not in WAYS.get(word, "{}") and word not in known
        while words and not words[0].startswith("-") and len(values) < most and not flag:
            values.append(words.pop(0))
        yield word, values


def _values(rest: Sequence[str], *names: str) -> list[str]:
    """Devices that a command line names, by commas or one after the other."""
    found: list[str] = []
    for place, word in enumerate(rest):
        if word in names:
            for value in rest[place + 1 :]:
                if value.startswith("-"):
                    break
                found += value.split(",")
    return found


def _way(option: str, values: Sequence[str], known: set[str]) -> list[str]:
    """The words that say an option here; none where no option of the command does."""
    way = WAYS.get(option, "").split()
    value = values[0] if values else ""
    if way == ["{}"]:
        return [*values]
    for name, text in zip(way[::2], way[1::2], strict=True):
        if name in known:
            if name == "--dtype" and value in WEIGHTS and "--weights" in known:
                name = "--weights"
            if name == "--input-shape" and value.isdecimal():
                text = "3x{0}x{0}"
            if name == "--task" and value == "diffusion":
                value = "image"
            if name == "--sla" and re.fullmatch(r"[\d.]+", value):
                value += "ms"
            return [name, text.format(value)]
    return []
