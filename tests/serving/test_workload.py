"""Files of requests: the columns of others, and lines that are broken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neuralpower.errors import InputError
from neuralpower.serving.workload import Requested, read

FILES = {
    "log.csv": "request_id,input_toks,output_toks,arrival_s\na,10,5,0\nb,20,6,1.5\n",
    "burst.csv": "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,10,5,15,a\n6.5,GPT-4,20,6,26,a\n",
    "azure.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:15:46.6805900,10,5\n2023-11-16 18:15:48.1805900,20,6\n",
    "mooncake.jsonl": '{"timestamp": 100, "input_length": 10, "output_length": 5, "hash_ids": [1]}\n'
    '{"timestamp": 1600, "input_length": 20, "output_length": 6, "hash_ids": [1]}\n',
    "bench.jsonl": '{"created_time": 1, "prompt_len": 10, "output_len": 5}\n\n'
    '{"created_time": 2.5, "prompt_len": 20, "output_len": 6}\n',
    "list.json": '[{"arrival_s": 1, "input_tokens": 10, "output_tokens": 5},\n'
    ' {"arrival_s": 2.5, "input_tokens": 20, "output_tokens": 6}]\n',
}


@pytest.mark.parametrize("name", FILES)
def test_requests_of_others_are_read(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(FILES[name])
    found = read(tmp_path / name)
    assert found.arrival_s == pytest.approx([0, 1.5], abs=1e-5)
    assert found.prompt.tolist() == [10, 20] and found.output.tolist() == [5, 6]
    assert found.prefixes == (((1,), (1,)) if "mooncake" in name else ())
    assert found.rate == pytest.approx(1 / 1.5, rel=1e-4)
    assert read(tmp_path / name, scale=3.0, first=1).count == 1
    assert read(tmp_path / name, scale=3.0).arrival_s == pytest.approx([0, 0.5], abs=1e-5)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no requests"),
        ("arrival_s,input_toks,output_toks\n0,5,0\n", "line 2: output_toks 0"),
        ("arrival_s,input_toks,output_toks\n0,5,2.5\n", "line 2: output_toks 2.5"),
        ("arrival_s,input_toks,output_toks\n0,nan,2\n", "line 2: input_toks nan"),
        ("arrival_s,input_toks,output_toks\n0,x,2\n", "line 2: input_toks 'x' is not a number"),
        ("arrival_s,input_toks,output_toks\n3,5,2\n1,5,2\n", "line 3: arrives before"),
        ("arrival_s,input_toks,output_toks\n-3,5,2\n", "line 2: arrival_s -3"),
        ("arrival_s,input_toks,output_toks\nnoon,5,2\n", "line 2: arrival_s 'noon' is not a time"),
        ("arrival_s,input_toks\n0,5\n", "line 2: no length; name its column"),
        ("arrival_s,input_toks,output_toks\n0,5,2\n1,5\n", "line 3: no length; fill output_toks"),
        ("input_toks,output_toks\n5,5\n", "line 2: no arrival"),
        ('{"timestamp": 0, "input_length": 5, "output_length": 2}\n{"timestamp": 1', "line 2: is not JSON"),
        ('{"timestamp": 0, "input_length": 5, "output_length": 2}\n[1]\n', "line 2: is not an object"),
        ('[{"timestamp": 0, "input_length": 5, "output_length": 2}, 3]', "line 2: is not an object"),
        ('[{"timestamp": 0,', "line 1: is not JSON"),
        (
            '{"timestamp": 0, "input_length": 10, "output_length": 2, "hash_ids": [1, 2, 3, 4]}',
            "request 1: 4 hash_ids contradict its length of 10",
        ),
        (
            '{"timestamp": 0, "input_length": 900, "output_length": 2, "hash_ids": [1, 2]}\n'
            '{"timestamp": 0, "input_length": 900, "output_length": 2, "hash_ids": [1, 2, 3]}',
            "request 2: 3 hash_ids contradict its length of 900: each names 450 to 899 tokens",
        ),
    ],
)
def test_a_broken_line_is_told_by_its_number(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "requests").write_text(text)
    with pytest.raises(InputError, match=said):
        read(tmp_path / "requests")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing.csv cannot be read"):
        read(tmp_path / "nothing.csv")
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot be read"):
        read(tmp_path / "bytes.csv")


def test_arrivals_at_another_rate_keep_their_order(tmp_path: Path) -> None:
    rows = [{"timestamp": 1_000 * i, "input_length": 5, "output_length": 2} for i in range(11)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = read(tmp_path / "a.jsonl").at_rate(4.0)
    assert found.arrival_s == pytest.approx(np.arange(11) / 4)
    assert [part.count for part in found.shared(2)] == [6, 5]


@pytest.mark.parametrize("comes", [{"rate": 4.0}, {"users": 4}, {"trace": "there_is_none.csv"}])
def test_gaps_of_no_shape_are_refused_however_requests_come(comes: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="burstiness 0: above 0"):
        Requested(**comes, burstiness=0.0).workload()
