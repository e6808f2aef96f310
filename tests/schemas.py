"""JSON Schemas of what neuralpower writes; `python -m tests.schemas` writes them from the declarations."""

import json
from pathlib import Path
from typing import Any

import msgspec

from neuralpower.data.schema import RECORDS, DatasetMeta
from neuralpower.learn.predictor_parts import PredictorPart
from neuralpower.prediction.explore.gate import Baseline

FOLDER = Path(__file__).parent.parent / "docs" / "schemas"
DECLARED: dict[str, Any] = {
    "predictor": PredictorPart,
    "dataset": DatasetMeta,
    "journal-record": RECORDS,
    "gate-baseline": Baseline,
}


def schema_of(name: str) -> str:
    """The text of one file."""
    about = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": name}
    return json.dumps({**about, **msgspec.json.schema(DECLARED[name])}, indent=1) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name in DECLARED:
        (FOLDER / f"{name}.json").write_text(schema_of(name))
