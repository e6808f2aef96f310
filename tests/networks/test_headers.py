"""Headers of files of weights: bytes by type, the model that a GGUF file describes, and damaged files."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import neuralpower
from neuralpower.errors import InputError, ModelError
from neuralpower.networks.headers import TYPES, HeaderError, read_gguf, read_index, read_safetensors
from tests.program import done, run

NUMBERS = {name: number for number, (name, _, _) in TYPES.items()}
LLAMA = {
    **{"general.architecture": "llama", "general.file_type": 15, "llama.block_count": 2},
    **{"llama.context_length": 4096, "llama.embedding_length": 512, "llama.feed_forward_length": 1024},
    **{"llama.attention.head_count": 8, "llama.attention.head_count_kv": 2},
    **{"llama.attention.layer_norm_rms_epsilon": 1e-5, "tokenizer.ggml.tokens": ["x"] * 2048},
}
BLOCK = {
    **{"attn_q": ((512, 512), "q4_k"), "attn_k": ((128, 512), "q4_k"), "attn_v": ((128, 512), "q6_k")},
    **{"attn_output": ((512, 512), "q5_k"), "ffn_gate": ((1024, 512), "q4_k")},
    **{"ffn_up": ((1024, 512), "q3_k"), "ffn_down": ((512, 1024), "q6_k"), "attn_norm": ((512,), "float32")},
}
TENSORS = {
    "token_embd.weight": ((2048, 512), "q4_k"),
    "output.weight": ((2048, 512), "q8_0"),
    "output_norm.weight": ((512,), "float32"),
    **{f"blk.{n}.{name}.weight": of for n in range(2) for name, of in BLOCK.items()},
}


def size_of(shape: tuple[int, ...], kind: str) -> int:
    _, block, block_bytes = TYPES[NUMBERS[kind]]
    count = 1
    for size in shape:
        count *= size
    return count // block * block_bytes


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def told(value: Any) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", 8) + text(value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, list):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text, value))
    return struct.pack("<II", 4, value)


def gguf(
    file: Path,
    metadata: Mapping[str, Any] = LLAMA,
    tensors: Mapping[str, tuple[tuple[int, ...], str]] = TENSORS,
    version: int = 3,
) -> Path:
    data, at = b"", 0
    for name, (shape, kind) in tensors.items():
        sizes = struct.pack(f"<I{len(shape)}Q", len(shape), *shape[::-1])
        data += text(name) + sizes + struct.pack("<IQ", NUMBERS[kind], at)
        at += -(-size_of(shape, kind) // 32) * 32
    pairs = b"".join(text(name) + told(value) for name, value in metadata.items())
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata)) + pairs + data
    file.write_bytes(head + bytes(-len(head) % 32))
    with file.open("ab") as end:
        end.truncate(file.stat().st_size + at)
    return file


def safetensors(file: Path, tensors: Mapping[str, Any], bytes_: int, length: int | None = None) -> Path:
    head = json.dumps(tensors).encode()
    file.write_bytes(struct.pack("<Q", len(head) if length is None else length) + head)
    with file.open("ab") as end:
        end.truncate(file.stat().st_size + bytes_)
    return file


def tensor(kind: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": kind, "shape": shape, "data_offsets": [begin, end]}


# ---- GGUF ----


@pytest.mark.parametrize("kind", NUMBERS)
def test_bytes_of_each_type_are_exact(tmp_path: Path, kind: str) -> None:
    shape = (3, 512)
    found = read_gguf(gguf(tmp_path / "a.gguf", tensors={"a": (shape, kind)}))
    assert found.bytes_by_type == {kind: size_of(shape, kind)}
    assert (found.tensors["a"], found.parameters) == (shape, 3 * 512)


def test_a_file_describes_its_model(tmp_path: Path) -> None:
    file = gguf(tmp_path / "model.gguf")
    found = json.loads(
        done("predict", file, "--device", "l40s", "--phase", "decode", "--context", 64, "--json")
    )
    exact = sum(size_of(*of) for of in TENSORS.values())
    assert found["dtype"] == "bfloat16"
    assert found["weights"]["bytes"] == pytest.approx(exact, rel=0.001)
    assert {part["words"] for part in found["weights"]["parts"]} == {"Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_0"}
    fits = done("fit", file, "--device", "24GiB", "--phase", "decode", "--context", 64)
    assert "fits into 24 GiB" in fits


def test_tied_embeddings_and_plain_types(tmp_path: Path) -> None:
    plain = {name: (shape, "float16") for name, (shape, _) in TENSORS.items() if name != "output.weight"}
    file = gguf(tmp_path / "model.gguf", {**LLAMA, "general.file_type": 1}, plain)
    found = neuralpower.predict(str(file), device="l40s", phase=neuralpower.Phase("decode", context=8))
    assert found.dtype == "float16" and found.weights is None
    assert found.parameters == pytest.approx(read_gguf(file).parameters, rel=0.001)


def test_other_architectures_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="architecture of a GGUF file 'lama': did you mean llama"):
        neuralpower.predict(str(gguf(tmp_path / "a.gguf", {"general.architecture": "lama"})), device="l40s")
    with pytest.raises(HeaderError, match="names no architecture"):
        neuralpower.predict(str(gguf(tmp_path / "b.gguf", {"a": 1})), device="l40s")
    clip = gguf(tmp_path / "c.gguf", {"general.architecture": "t5", "t5.block_count": 2})
    with pytest.raises(HeaderError, match="t5 is not a model that continues a text"):
        neuralpower.predict(str(clip), device="l40s")


def overwritten(at: int, data: bytes) -> Callable[[bytes], bytes]:
    return lambda whole: whole[:at] + data + whole[at + len(data) :]


DAMAGED: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "no magic": (overwritten(0, b"PKZZ"), "does not begin with GGUF"),
    "version 1": (overwritten(4, struct.pack("<I", 1)), "is of version 1, .*convert it again"),
    "version 9": (overwritten(4, struct.pack("<I", 9)), "is of version 9, .*may be damaged"),
    "a billion tensors": (overwritten(8, struct.pack("<Q", 10**9)), "1,000,000,000 tensors"),
    "a billion fields": (overwritten(16, struct.pack("<Q", 10**9)), "1,000,000,000 fields"),
    "a long text": (overwritten(24, struct.pack("<Q", 2**62)), "a text of"),
    "not UTF-8": (overwritten(32, b"\xff\xfe"), "not UTF-8"),
    "cut in its header": (lambda whole: whole[:200], "ends within its header"),
    "cut in its tensors": (lambda whole: whole[:-64], "ends 64 bytes before"),
    "nothing": (lambda whole: b"", "does not begin with GGUF"),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_damaged_files_are_refused_in_one_line(tmp_path: Path, what: str) -> None:
    damage, said = DAMAGED[what]
    file = gguf(tmp_path / "model.gguf")
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(HeaderError, match=said) as caught:
        read_gguf(file)
    assert "\n" not in str(caught.value)
    ended = run("fit", file, "--device", "24GiB")
    assert ended.code == 2 and ended.err.count("\n") == 1


def test_rows_that_blocks_do_not_divide_are_refused(tmp_path: Path) -> None:
    with pytest.raises(HeaderError, match="rows of 500; q4_k has blocks of 256"):
        read_gguf(gguf(tmp_path / "a.gguf", tensors={"a": ((4, 500), "q4_k")}))


# ---- safetensors ----


def test_bytes_of_safetensors_are_exact(tmp_path: Path) -> None:
    tensors = {
        "__metadata__": {"format": "pt"},
        "a": tensor("BF16", [2, 3], 0, 12),
        "b": tensor("F8_E4M3", [5], 12, 17),
        "c": tensor("F4", [3], 17, 19),
        "d": tensor("F32", [], 19, 23),
    }
    found = read_safetensors(safetensors(tmp_path / "m.safetensors", tensors, 23))
    assert found.bytes_by_type == {"bfloat16": 12, "f8_e4m3": 5, "float32": 4, "f4": 2}
    assert (found.parameters, found.metadata) == (6 + 5 + 3 + 1, {"format": "pt"})


def test_an_index_sums_its_files(tmp_path: Path) -> None:
    for n in range(3):
        safetensors(tmp_path / f"{n}.safetensors", {f"t{n}": tensor("F16", [4], 0, 8)}, 8)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {f"t{n}": f"{n}.safetensors" for n in range(3)}}))
    assert read_index(index).bytes_by_type == {"float16": 24}
    with pytest.raises(ModelError, match=r"holds .* in 3 tensors: float16 .* names no architecture"):
        neuralpower.predict(str(index), device="l40s")
    (tmp_path / "config.json").write_text('{"model_type": "gpt2", "n_layer": 1}')
    assert neuralpower.predict(str(index), device="l40s", seq_len=4).parameters > 0
    for bad, said in (("../0.safetensors", "outside its folder"), ("9.safetensors", "does not hold")):
        index.write_text(json.dumps({"weight_map": {"t": bad}}))
        with pytest.raises(HeaderError, match=said):
            neuralpower.predict(str(index), device="l40s", seq_len=4)


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({"a": tensor("F32", [2], 0, 12)}, "12 bytes for 'a', whose sizes need 8"),
        ({"a": tensor("F32", [2], -8, 0)}, "with sizes"),
        ({"a": tensor("F32", [2], 8, 0)}, "with sizes"),
        ({"a": tensor("F32", [-2], 0, 8)}, "with sizes"),
        ({"a": tensor("F32", [2], 0, 8), "b": tensor("F32", [2], 4, 12)}, "over another tensor"),
        ({"a": tensor("F32", [20], 0, 80)}, "ends 64 bytes before"),
        ({"a": tensor("F99", [2], 0, 8)}, "'F99', which is not known"),
        ({"a": tensor("F32", [10**18, 10**18], 0, 8)}, "whose sizes need"),
        ({"a": 3}, "'a' of the type None"),
        ([], "not an object"),
    ],
)
def test_contradictions_are_refused(tmp_path: Path, tensors: Any, said: str) -> None:
    with pytest.raises(HeaderError, match=said):
        read_safetensors(safetensors(tmp_path / "m.safetensors", tensors, 16))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "header of 0 bytes, and 0 bytes in all|it is empty"),
        (struct.pack("<Q", 2**60) + b"{}", "header of 1,152,921,504,606,846,976 bytes"),
        (struct.pack("<Q", 2) + b"{]", "is not JSON|not JSON"),
        (struct.pack("<Q", 4) + b'{"\xff\xff', "not JSON"),
    ],
)
def test_headers_that_cannot_be_are_refused(tmp_path: Path, data: bytes, said: str) -> None:
    file = tmp_path / "m.safetensors"
    file.write_bytes(data)
    with pytest.raises(HeaderError, match=said):
        read_safetensors(file)
