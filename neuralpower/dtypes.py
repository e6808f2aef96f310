"""Element types by the names that torch gives them, without importing it."""

from __future__ import annotations

ITEMSIZE = {
    "float64": 8,
    "float32": 4,
    "tensorfloat32": 4,  # float32 in memory, products of 10-bit mantissas on tensor cores
    "float16": 2,
    "bfloat16": 2,
    "complex64": 8,
    "complex128": 16,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
    "float8_e4m3fn": 1,
}
FLOATING = ("float32", "tensorfloat32", "bfloat16", "float16", "float64", "float8_e4m3fn")
TENSORFLOAT32 = "tensorfloat32"
