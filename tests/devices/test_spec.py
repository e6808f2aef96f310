"""Spec sheets: what is shipped holds together, and what a user writes is held to the rules."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from neuralpower.devices.spec import (
    CLASSES,
    GIVEN,
    KEYS,
    DeviceSpec,
    Value,
    find_spec,
    known_spec,
    known_specs,
    read_spec,
)
from neuralpower.errors import InputError, unknown
from tests.program import done, run

SPECS = {slug: read_spec(path) for slug, path in known_specs().items()}
each_sheet = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)


def own(**changes: Any) -> dict[str, Any]:
    """A user's sheet with the fewest fields, and changes."""
    values = {"peak_flops_float32": 2e12, "memory_bytes_per_s": 5e10, "cores": 8}
    return {"schema": 1, "name": "Mine", "class": "gpu", "values": values, **changes}


def valued(**changes: Any) -> dict[str, Any]:
    """A user's sheet with changed values; None takes one out."""
    values = {**own()["values"], **changes}
    return own(values={key: value for key, value in values.items() if value is not None})


def written(folder: Path, sheet: Any) -> Path:
    file = folder / "mine.json"
    file.write_text(sheet if isinstance(sheet, str) else json.dumps(sheet))
    return file


# ---- what is shipped ----


def test_there_are_sheets_of_every_class() -> None:
    assert len(SPECS) >= 108
    assert {spec.device_class for spec in SPECS.values()} == set(CLASSES)


@each_sheet
def test_a_shipped_sheet_is_complete(spec: DeviceSpec) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", spec.slug)
    assert spec.vendor
    assert spec.year is not None
    assert spec.aliases
    assert spec.peak_flops


@each_sheet
def test_every_shipped_number_has_a_source(spec: DeviceSpec) -> None:
    for key, value in spec.values.items():
        assert value.source != GIVEN, key
        assert len(value.source) > 10, key
        assert value.source.isascii(), key
        assert value.source.isprintable(), key


@each_sheet
def test_the_lanes_and_the_clock_give_the_float32_peak(spec: DeviceSpec) -> None:
    # a lane does one multiply-add, 2 FLOP, per clock: A100 has 2 * 6912 * 1.41 GHz = 19.5 TFLOP/s
    lanes, clock_hz, peak = spec.get("lanes"), spec.get("clock_hz"), spec.get("peak_flops_float32")
    if lanes and clock_hz and peak:
        assert peak == pytest.approx(2 * lanes * clock_hz, rel=0.02)


def test_the_lanes_of_most_gpus_are_checked() -> None:
    gpus = [spec for spec in SPECS.values() if spec.device_class == "gpu"]
    assert (
        sum({"lanes", "clock_hz", "peak_flops_float32"} <= set(spec.values) for spec in gpus) >= len(gpus) - 5
    )


@each_sheet
def test_a_narrower_type_is_no_slower(spec: DeviceSpec) -> None:
    peaks = spec.peak_flops
    order = ["float32", "tensorfloat32", "bfloat16", "float8_e4m3fn", "float4_e2m1fn"]
    given = [peaks[dtype] for dtype in order if dtype in peaks]
    assert given == sorted(given)
    if "Blackwell Ultra has few units" not in spec.values.get("peak_flops_int8", Value(0, "")).source:
        assert peaks.get("int8", float("inf")) >= max(peaks.get("float16", 0), peaks.get("bfloat16", 0))


@each_sheet
def test_the_last_cache_is_no_smaller_than_the_one_above(spec: DeviceSpec) -> None:
    assert (spec.get("llc_bytes") or 0) >= (spec.get("l2_bytes") or 0)


def test_no_two_sheets_share_a_name() -> None:
    owners: dict[str, str] = {}
    for slug, spec in SPECS.items():
        for label in {x.casefold() for x in (slug, spec.name, *spec.aliases)}:
            assert owners.setdefault(label, slug) == slug, label


@pytest.mark.parametrize(
    ("slug", "key", "value"),
    [  # where a printed table misleads: sparse rates, one form of a board taken for another, bits for bytes
        ("nvidia-l4", "memory_bytes_per_s", 300e9),
        ("nvidia-l4", "peak_flops_bfloat16", 121e12),
        ("nvidia-h100-sxm5-80gb", "peak_flops_bfloat16", 989.4e12),
        ("nvidia-h100-pcie", "peak_flops_bfloat16", 756e12),
        ("nvidia-h200-sxm-141gb", "peak_flops_int8", 1979e12),
        ("nvidia-b200", "peak_flops_float8_e4m3fn", 4.5e15),
        ("nvidia-b300", "peak_flops_float4_e2m1fn", 14e15),
        ("nvidia-b300", "peak_flops_int8", 153.5e12),
        ("nvidia-gb200", "peak_flops_bfloat16", 2.5e15),
        ("nvidia-l40", "peak_flops_bfloat16", 181.05e12),
        ("nvidia-h20", "peak_flops_bfloat16", 148e12),
        ("nvidia-rtx-pro-6000-server", "memory_bytes_per_s", 1597e9),
        ("amd-instinct-mi355x", "peak_flops_float16", 2516.6e12),
        ("apple-m4-max", "memory_bytes_per_s", 546e9),
        ("nvidia-v100-pcie-32gb", "peak_flops_float32", 14e12),
        ("nvidia-v100-sxm2-32gb", "peak_flops_float32", 15.7e12),
        ("nvidia-a100-sxm4-40gb", "peak_flops_tensorfloat32", 156e12),
        ("nvidia-jetson-agx-orin-64gb", "peak_flops_int8", 85e12),
        ("amd-instinct-mi250", "cores", 208),
        ("google-tpu-v5e", "peak_flops_bfloat16", 197e12),
    ],
)
def test_known_traps_are_avoided(slug: str, key: str, value: float) -> None:
    assert SPECS[slug].get(key) == value


def test_a_derived_peak_is_the_product_in_its_source() -> None:
    # "40 cores x 64 FLOP ... per cycle x 2.3 GHz": 40 * 64 * 2.3e9 = 5.888e12
    units = "cores|multiprocessors|GPU cores|Xe cores"
    checked = 0
    for spec in SPECS.values():
        for key, value in spec.values.items():
            found = re.match(rf"(\d+) (?:{units}) x (\d+) .* x ([\d.]+) GHz", value.source)
            if found:
                cores, per_cycle, ghz = map(float, found.groups())
                product = pytest.approx(cores * per_cycle * ghz * 1e9, rel=1e-3)
                assert value.value == product, (spec.slug, key)
                assert cores == spec.get("cores")
                checked += 1
    assert checked >= 150


@pytest.mark.parametrize(
    ("slug", "printed"),
    [  # TFLOP/s in bfloat16 that NVIDIA's white papers print for these cards, dense, accumulated in float32
        ("nvidia-rtx-3080", 59.5),
        ("nvidia-rtx-3070", 40.6),
        ("nvidia-rtx-4080", 97.5),
        ("nvidia-rtx-5080", 112.6),
        ("nvidia-rtx-5070-ti", 87.9),
        ("nvidia-rtx-5070", 61.7),
        ("nvidia-rtx-a6000", 154.8),
        ("nvidia-rtx-pro-6000-workstation", 503.8),
    ],
)
def test_rates_per_clock_give_what_white_papers_print(slug: str, printed: float) -> None:
    assert SPECS[slug].peak_flops["bfloat16"] / 1e12 == pytest.approx(printed, rel=2e-3)


# ---- finding one ----


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("nvidia-a100-sxm4-40gb", "nvidia-a100-sxm4-40gb"),
        ("Tesla T4", "nvidia-t4"),
        ("nvidia h100 80gb hbm3", "nvidia-h100-sxm5-80gb"),
        ("NVIDIA H200", "nvidia-h200-sxm-141gb"),
        ("AMD EPYC 7763 64-Core Processor                ", "amd-epyc-7763"),
        ("TPU v5 lite", "google-tpu-v5e"),
        ("Google TPU v4", "google-tpu-v4"),
        ("h100", "nvidia-h100-sxm5-80gb"),
        ("H100-SXM", "nvidia-h100-sxm5-80gb"),
        ("h100 pcie", "nvidia-h100-pcie"),
        ("4090", "nvidia-rtx-4090"),
        ("rtx 4090", "nvidia-rtx-4090"),
        ("RTX4090", "nvidia-rtx-4090"),
        ("l40", "nvidia-l40"),
        ("l40s", "nvidia-l40s"),
        ("A100-80GB", "nvidia-a100-sxm4-80gb"),
        ("a100 40gb pcie", "nvidia-a100-pcie-40gb"),
        ("5070 ti", "nvidia-rtx-5070-ti"),
        ("mi300x", "amd-instinct-mi300x"),
        ("M3Max", "apple-m3-max"),
        ("m3", "apple-m3"),
        ("arc b60", "intel-arc-pro-b60"),
        ("GB10", "nvidia-dgx-spark"),
        ("tpuv4", "google-tpu-v4"),
    ],
)
def test_a_sheet_is_found_by_slug_name_or_alias(name: str, slug: str) -> None:
    assert find_spec(name).slug == slug


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("nvidia-a100-sxm4-41gb", "nvidia-a100-sxm4-40gb"),
        ("Tesla T5", "nvidia-t4"),
        ("RTX 4909", "nvidia-rtx-4090"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(name: str, near: str) -> None:
    with pytest.raises(InputError, match=f"unknown device '{name}': .*{near}"):
        find_spec(name)


@pytest.mark.parametrize(
    ("name", "listed"),
    [
        (
            "a100",
            "nvidia-a100-80gb-pcie, nvidia-a100-pcie-40gb, nvidia-a100-sxm4-40gb, nvidia-a100-sxm4-80gb",
        ),
        (
            "rtx pro 6000",
            "nvidia-rtx-pro-6000-max-q, nvidia-rtx-pro-6000-server, nvidia-rtx-pro-6000-workstation",
        ),
    ],
)
def test_a_name_that_fits_several_devices_lists_them(name: str, listed: str) -> None:
    with pytest.raises(InputError, match=f"device '{name}' may be {listed}; choose one of them"):
        find_spec(name)


def test_software_is_asked_for_the_very_name() -> None:
    assert known_spec("NVIDIA H100 80GB HBM3") == SPECS["nvidia-h100-sxm5-80gb"]
    assert known_spec("4090") is None


def test_every_sheet_is_found_by_its_slug_in_one_piece() -> None:
    assert {slug: find_spec(slug.replace("-", "").upper()).slug for slug in SPECS} == dict(
        zip(SPECS, SPECS, strict=True)
    )


def test_names_with_commas_are_told_apart() -> None:
    assert (
        str(unknown("device", "x", ["Core i7, 8 cores", "T4"]))
        == "unknown device 'x': known: Core i7, 8 cores; T4"
    )
    assert str(unknown("device", "x", ["P4", "T4"])) == "unknown device 'x': known: P4, T4"


def test_a_value_that_a_sheet_lacks_is_none_and_one_that_none_can_have_is_refused() -> None:
    assert SPECS["google-tpu-v5e"].get("limit_w") is None
    with pytest.raises(InputError, match="unknown value of a spec sheet 'limit': did you mean limit_w?"):
        SPECS["google-tpu-v5e"].get("limit")


# ---- a user's own ----


def test_plain_numbers_are_the_users(tmp_path: Path) -> None:
    sheet = valued(limit_w={"value": 50, "source": "measured at the plug"})
    spec = read_spec(written(tmp_path, sheet))
    assert (spec.name, spec.slug, spec.device_class) == ("Mine", "mine", "gpu")
    assert (spec.vendor, spec.year, spec.aliases) == (None, None, ())
    assert spec.peak_flops == {"float32": 2e12}
    assert spec.values["cores"] == Value(8.0, GIVEN)
    assert spec.values["limit_w"] == Value(50.0, "measured at the plug")


@each_sheet
def test_a_sheet_survives_its_file(spec: DeviceSpec, tmp_path: Path) -> None:
    copy = tmp_path / f"{spec.slug}.json"
    copy.write_text(json.dumps(spec.to_json()))
    assert read_spec(copy) == spec


@pytest.mark.parametrize(
    ("sheet", "words"),
    [
        ("{", "is not JSON; give a spec sheet"),
        ([1], "the sheet is [1], but must be an object with schema, name, class and values"),
        (own(schema=2), "schema is 2, but must be 1"),
        (own(schema=True), "schema is true, but must be 1"),
        (own(clas="gpu"), "unknown field in .*mine.json 'clas': did you mean class"),
        ({"schema": 1, "class": "gpu", "values": {}}, "has no 'name'"),
        ({"schema": 1, "name": "x", "class": "gpu"}, "has no 'values'"),
        ({"name": "x", "class": "gpu", "values": {}}, "has no 'schema'"),
        (own(name=" "), 'name is " ", but must be a text that is not empty'),
        (own(vendor=7), "vendor is 7, but must be a text"),
        (own(year="2024"), 'year is "2024", but must be the year of'),
        (own(year=24), "year is 24, but must be the year of"),
        (own(aliases="x"), 'aliases is "x", but must be a list of names'),
        (own(aliases=[1]), "an alias is 1, but must be a text"),
        (own(**{"class": "gpus"}), "unknown class in .*mine.json 'gpus': did you mean gpu"),
        (own(**{"class": ["gpu"]}), "unknown class in"),
        (own(values=3), "values is 3, but must be an object"),
        (valued(memory_bytes_per_s=None), "has no 'memory_bytes_per_s' among its values"),
        (valued(cores=None), "has no 'cores' among its values"),
        (valued(peak_flops_float32=None), "has no peak among its values, but needs one at least"),
        (
            valued(peak_flops_fp16=1e12),
            "unknown value in .*mine.json 'peak_flops_fp16': did you mean .*peak_flops_float16",
        ),
        (valued(cores="8"), 'cores is "8", but must be a number, in cores'),
        (valued(cores=True), "cores is true, but must be a number"),
        (valued(cores=[8] * 99), "cores is [8, 8, .* ..., but must be a number"),
        (valued(cores=0), "cores is 0, but must be between 1 and 1e+06 cores"),
        (valued(cores=-8), "cores is -8, but must be between"),
        (valued(cores=7.5), "cores is 7.5, but must be a whole number"),
        (valued(cores=float("inf")), "cores is Infinity, but must be between"),
        (valued(cores=float("nan")), "cores is NaN, but must be between"),
        (valued(cores=10**400), "cores is 1000.* ..., but must be between"),
        (
            valued(peak_flops_float32=19.5),
            "peak_flops_float32 is 19.5, but must be between 1e+09 and 1e+17 FLOP/s; give it without "
            "a prefix",
        ),
        (
            valued(memory_bytes_per_s=2039),
            "memory_bytes_per_s is 2039, but must be between 1e+09 and 1e+14 B/s",
        ),
        (valued(limit_w=0.1), "limit_w is 0.1, but must be between 0.5 and 5000 W"),
        (valued(limit_w=400_000), "limit_w is 400000, but must be between 0.5 and 5000 W"),
        (valued(limit_w=50, idle_w=50), "idle_w is 50.0, but must be less than limit_w, which is 50 W"),
        (
            valued(clock_hz=1e9, base_clock_hz=2e9),
            "base_clock_hz is 2000000000.0, but must be at most clock_hz, which is 1e+09 Hz",
        ),
        (valued(cores={"value": 8}), "cores has no source; write the document"),
        (valued(cores={"value": 8, "source": " "}), "cores has no source"),
        (valued(cores={"value": 8, "source": 5}), "cores has no source"),
        (valued(cores={"source": "its box"}), "cores has no 'value'"),
        (
            valued(cores={"value": 8, "source": "its box", "unit": "1"}),
            "unknown field of cores in .*mine.json 'unit'",
        ),
    ],
)
def test_a_sheet_that_breaks_a_rule_is_refused_in_one_line(sheet: Any, words: str, tmp_path: Path) -> None:
    pattern = ".*".join(re.escape(part) for part in words.split(".*"))
    with pytest.raises(InputError, match=pattern) as refusal:
        read_spec(written(tmp_path, sheet))
    assert "\n" not in str(refusal.value)
    assert "mine.json" in str(refusal.value)
    assert len(str(refusal.value)) < 500


def test_values_at_the_edge_of_a_rule_are_taken(tmp_path: Path) -> None:
    for key, rule in KEYS.items():
        for edge in (rule.low, rule.high):
            assert read_spec(written(tmp_path, valued(**{key: edge}))).get(key) == edge


def test_a_sheet_may_begin_with_a_mark_as_windows_editors_write_it(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(SPECS["nvidia-t4"].to_json()), encoding="utf-8-sig")
    assert read_spec(file).values == SPECS["nvidia-t4"].values


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="none.json: cannot be read"):
        read_spec(tmp_path / "none.json")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="bytes.json: is not JSON"):
        read_spec(tmp_path / "bytes.json")
    with pytest.raises(InputError, match="mine.json: is not JSON"):
        read_spec(written(tmp_path, "[" * 100_000))


def test_reading_sheets_imports_no_torch() -> None:
    program = (
        "import sys\n"
        "from neuralpower.devices.spec import find_spec\n"
        "find_spec('Tesla T4')\n"
        "assert not {'torch', 'numpy', 'pandas'} & set(sys.modules)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


# ---- the command line ----


def test_all_sheets_are_listed() -> None:
    header, rule, *rows = done("devices", "--specs", "-v").splitlines()
    assert header.split() == "device class memory fp32 TFLOP/s bf16 TFLOP/s GB/s cores W".split()
    assert set(rule) == {"-", " "}
    assert [row.split()[0] for row in rows] == list(SPECS)
    assert "nvidia-a100-sxm4-40gb gpu 40 GiB 19.5 312 1555 108 400".split() in [row.split() for row in rows]
    assert "google-tpu-v5e tpu 16 GiB - 197 819 1 -".split() in [row.split() for row in rows]


def test_one_sheet_is_shown_with_its_sources() -> None:
    text = done("devices", "--spec", "tesla t4", "-v")
    assert text.startswith("NVIDIA Tesla T4, gpu, NVIDIA, 2018\nreported as Tesla T4, NVIDIA T4\n")
    for key, value in SPECS["nvidia-t4"].values.items():
        assert re.search(rf"^{key} .*{re.escape(value.source)}$", text, re.M)
    assert "70 W" in text


def test_a_users_sheet_is_shown(tmp_path: Path) -> None:
    text = done("devices", "--spec", written(tmp_path, own()))
    assert text.startswith("Mine, gpu\n\nvalue")
    assert re.search(rf"^cores +8 cores +{GIVEN}$", text, re.M)


def test_sheets_are_json_on_demand(tmp_path: Path) -> None:
    copy = tmp_path / "nvidia-t4.json"
    copy.write_text(done("devices", "--spec", "nvidia-t4", "--json"))
    assert read_spec(copy) == SPECS["nvidia-t4"]
    listed = json.loads(done("devices", "--specs", "--json"))
    assert listed["schema"] == 1
    assert listed["specs"] == {slug: spec.to_json() for slug, spec in SPECS.items()}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--spec", "nvidia-t5"], "unknown device 'nvidia-t5': did you mean nvidia-t4"),
        (["--spec", ""], "--spec is empty; give it a value"),
        (["--spec", "none.json"], "none.json: cannot be read"),
        (["--specs", "--spec", "nvidia-t4"], "give one of the two options"),
        (["t4", "--specs"], "give one of the two options"),
        (["t4", "--spec", "nvidia-t4"], "one sheet is shown at a time"),
        (["t51"], "unknown device 't51'"),
    ],
)
def test_a_wrong_question_is_answered_in_one_line(arguments: list[str], words: str) -> None:
    code, out, err = run("devices", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert words in err


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        *((name, "nvidia-rtx-4090-d") for name in ("4090d", "4090-D", "rtx-4090-d", "RTX4090D")),
        *((name, "nvidia-h200-nvl") for name in ("h200-nvl", "H200NVL", "NVIDIA H200 NVL")),
        *((name, "nvidia-rtx-pro-6000-max-q") for name in ("rtx-pro-6000-max-q", "RTX PRO 6000 MaxQ")),
        *((name, "apple-m2-ultra") for name in ("m2-ultra", "M2Ultra", "apple m2 ultra")),
        *((name, f"apple-{name}") for name in ("m1-pro", "m1-ultra", "m2-pro", "m2-max", "m2")),
        *((name, f"nvidia-{slug}") for name, slug in (("4090", "rtx-4090"), ("h200", "h200-sxm-141gb"))),
    ],
)
def test_usual_spellings_name_one_sheet(name: str, slug: str) -> None:
    assert find_spec(name).slug == slug


def test_every_gpu_of_nvidia_names_its_chip() -> None:
    gpus = [spec for spec in SPECS.values() if spec.vendor == "NVIDIA" and spec.device_class == "gpu"]
    assert not [spec.slug for spec in gpus if not spec.chip]
    assert {SPECS[slug].chip for slug in ("nvidia-h800-pcie", "nvidia-h20", "nvidia-gh200-96gb")} == {"GH100"}


@each_sheet
def test_boards_of_a_chip_have_the_same_cores(spec: DeviceSpec) -> None:
    lanes, cores = spec.get("lanes"), spec.get("cores")
    for other in SPECS.values():
        if other.chip and other.chip == spec.chip and lanes and other.get("lanes"):
            assert lanes / (cores or 1) == (other.get("lanes") or 0) / (other.get("cores") or 1), other.slug


def test_a_chip_is_a_text(tmp_path: Path) -> None:
    assert read_spec(written(tmp_path, own(chip="X1"))).chip == "X1"
    with pytest.raises(InputError, match="chip is 3, but must be a text that is not empty"):
        read_spec(written(tmp_path, own(chip=3)))
