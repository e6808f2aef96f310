"""JSON Schemas of what neuralpower writes; `python -m tests.schemas` writes them.

Those of files follow from declarations. Those of answers describe what the commands below print: each field
with the types that it has had, and whether every answer has it.
"""

import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from neuralpower.data.schema import RECORDS, DatasetMeta
from neuralpower.learn.files.predictor_parts import PredictorPart
from neuralpower.prediction.explore.gate import Baseline
from tests.program import run
from tests.traces.made import BF16, X, kernel, operator, written

FOLDER = Path(__file__).parent.parent / "docs" / "schemas"
ABOUT = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
DECLARED: dict[str, Any] = {
    "predictor": PredictorPart,
    "dataset": DatasetMeta,
    "journal-record": RECORDS,
    "gate-baseline": Baseline,
}
NETWORK = "transformers:gpt2?n_layer=2&n_embd=64&n_head=2&vocab_size=100"
ANSWERS: dict[str, tuple[str, ...]] = {
    "prediction": (
        "predict zoo:deep_mnist --device h100",
        "predict zoo:deep_mnist --device m3-max --dtype float16",
        "predict zoo:deep_mnist --device h100 --price 2/h --region France",
        "predict zoo:deep_mnist --predictor nvidia-float32 --device t4 --phase training --run compile",
        f"predict {NETWORK} --device h100 --phase decode --context 64 --weights int4:64",
        f"predict {NETWORK} --device h100 --phase generate --prompt 8 --new-tokens 4 --tensor-parallel 2",
        f"predict {NETWORK} --device h100 --phase decode --lengths 8,16",
    ),
    "fit": (
        "fit zoo:deep_mnist --device h100",
        f"fit {NETWORK} --device h100 --phase decode --engine vllm",
        f"fit {NETWORK} --device 600MB --phase training --batch-size 64",
        f"fit {NETWORK} --devices 2xh100-sxm --tensor-parallel 2",
    ),
    "parallel": (
        f"parallel {NETWORK} --devices 2xh100-sxm --phase decode --context 64",
        f"parallel {NETWORK} --devices 2xh100-sxm --phase training --global-batch 4",
    ),
    "gate-report": (
        "gate zoo:deep_mnist --baseline baseline.json",
        "gate --baseline baseline.json --max-latency 1us",
    ),
    "explanation": ("explain trace.json", "explain trace.json --against trace.json"),
}
MAPS = ("versions", "origins", "peaks", "steps")  # objects whose names are values, too


def schema_of(name: str) -> str:
    """The text of one file."""
    found = msgspec.json.schema(DECLARED[name]) if name in DECLARED else of_values([*answers(ANSWERS[name])])
    return json.dumps({**ABOUT, "title": name, **found}, indent=1) + "\n"


def answers(commands: Sequence[str]) -> Iterator[Any]:
    """What commands print as JSON, with a trace and a baseline at hand."""
    with tempfile.TemporaryDirectory() as folder:
        product = operator("aten::mm", 10, 4, [X, (BF16, [8, 16], [16, 1], "")])
        written(Path(folder), [product, *kernel(1, 11, 6)])
        names = {name: str(Path(folder) / name) for name in ("trace.json", "baseline.json")}
        if any("baseline.json" in command for command in commands):
            run(
                "gate", "zoo:deep_mnist", "--device", "h100", "--baseline", names["baseline.json"], "--update"
            )
        for command in commands:
            ran = run(*(names.get(word, word) for word in command.split()), "--json")
            assert ran.out.startswith("{"), f"{command}: {ran.err}"
            yield json.loads(ran.out)


def of_values(values: Sequence[Any], name: str = "") -> dict[str, Any]:
    """A schema that all values keep to."""
    found: dict[str, Any] = {}
    objects = [value for value in values if isinstance(value, dict)]
    items = [item for value in values if isinstance(value, list) for item in value]
    sorts = {_sort(value) for value in values}
    sorts -= {"integer"} if "number" in sorts else set()
    if sorts and sorts != {"null"}:  # what has been null alone may be anything
        found["type"] = sorted(sorts) if len(sorts) > 1 else next(iter(sorts))
    if objects and name in MAPS:
        found["additionalProperties"] = of_values([one for value in objects for one in value.values()])
    elif objects:
        names = dict.fromkeys(key for value in objects for key in value)
        found["required"] = [key for key in names if all(key in value for value in objects)]
        found["properties"] = {
            key: of_values([value[key] for value in objects if key in value], key) for key in names
        }
    if items:
        found["items"] = of_values(items)
    return found


def _sort(value: Any) -> str:
    """JSON Schema's name of a value's type; a float is a number, also where it is whole."""
    sorts = {type(None): "null", bool: "boolean", int: "integer", float: "number", str: "string"}
    return sorts.get(type(value), "array" if isinstance(value, list) else "object")


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for each in (*DECLARED, *ANSWERS):
        (FOLDER / f"{each}.json").write_text(schema_of(each))
