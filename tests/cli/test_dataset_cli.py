"""`neuralpower dataset`: from an empty template, or a table of anybody's, to a folder that can be trained."""

import json
import re
import shlex
from pathlib import Path

import pandas as pd
import pytest

from neuralpower.data.dataset import read_dataset
from neuralpower.data.importing import template
from neuralpower.layers import KINDS
from neuralpower.prediction.evaluation.measured import read_measurements
from tests.program import done, run


def linear(count: int = 12) -> pd.DataFrame:
    """Products of 64 rows: 10 us and 1 ns for each output."""
    table = pd.DataFrame(
        {"rows": 64, "in_features": 256, "out_features": [100 * (i + 1) for i in range(count)]}
    )
    return table.assign(bias=True, runtime_s=1e-5 + 1e-9 * table.out_features)


def foreign(count: int = 12) -> pd.DataFrame:
    """The same under the names and in the units of another program."""
    table = linear(count)
    return pd.DataFrame(
        {
            "M": table.rows,
            "K": table.in_features,
            "N": table.out_features,
            "latency_ms": table.runtime_s * 1e3,
        }
    )


MAPS = "rows=M in_features=K out_features=N runtime_s=latency_ms/1000 bias=true".split()
MAPPED = [part for one in MAPS for part in ("--map", one)]


# ---- init ----


@pytest.mark.parametrize("kind", [*KINDS])
def test_the_template_of_every_kind_is_read_and_its_examples_are_never_used(
    tmp_path: Path, kind: str
) -> None:
    (tmp_path / "dataset.json").write_text('{"schema": 1, "device": "x"}')
    file = tmp_path / f"{kind}.csv"
    file.write_text(template(kind))
    table = read_dataset(tmp_path).tables[kind].dropna(how="all")
    assert table["status"].tolist() == ["example"] * 2
    ran = run("dataset", "check", file)
    assert (ran.code, ran.out) == (0, f"{kind}: 0 of 0 rows usable; 2 example rows of the template skipped\n")
    file.write_text(
        template(kind).replace(",example", ",")
    )  # as a user fills it in: both are possible layers
    assert done("dataset", "check", file).startswith(f"{kind}: 2 of 2 rows usable")


def test_init_writes_a_folder_that_goes_on_to_check(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "mine"
    ran = run("dataset", "init", folder, "--kind", "linear,network", "--kind", "norm", "--device", "My GPU")
    names = ["dataset.json", "README.md", "linear.csv", "network.csv", "norm.csv"]
    assert ran.out.splitlines() == [str(folder / name) for name in names]
    assert f"neuralpower dataset check {folder}" in ran.err
    meta = json.loads((folder / "dataset.json").read_text())
    assert (meta["schema"], meta["device"], meta["hardware"]["peak_flops_per_s"]) == (1, "My GPU", None)
    ran = run("dataset", "check", folder)
    assert (ran.code, ran.out.count("2 example rows")) == (0, 3)
    assert "no usable row" in ran.err
    (folder / "norm.csv").unlink()
    assert run("dataset", "init", folder, "--kind", "norm").out == f"{folder / 'norm.csv'}\n"  # adds one


def test_a_device_with_a_spec_sheet_needs_no_hardware(tmp_path: Path) -> None:
    done("dataset", "init", tmp_path / "a", "--device", "NVIDIA L40S")
    assert json.loads((tmp_path / "a" / "dataset.json").read_text()) == {"schema": 1, "device": "NVIDIA L40S"}


def test_a_device_without_a_sheet_gets_one_to_fill_in_whose_numbers_go_into_the_next_folder(
    tmp_path: Path,
) -> None:
    sheet = tmp_path / "mine.json"
    asked = ("dataset", "init", tmp_path / "a", "--kind", "network", "--device-spec", sheet)
    assert str(sheet) in done(*asked)
    ran = run("predict", "zoo:resnet18", "--device", sheet)
    assert (ran.code, "is null, but must be a number" in ran.err) == (2, True)
    blank = json.loads(sheet.read_text())
    numbers = {key: 1e12 if "per_s" in key or "flops" in key else 80 * 2**20 for key in blank["values"]}
    filled = {**blank, "name": "Mine", "values": {**numbers, "cores": 64}}
    sheet.write_text(json.dumps(filled))
    done("dataset", "init", tmp_path / "b", "--device-spec", sheet)
    said = json.loads((tmp_path / "b" / "dataset.json").read_text())
    assert (said["device"], said["hardware"]["cores"]) == ("Mine", 64)
    assert said["hardware"]["peak_flops_per_s"] == {"float32": 1e12, "float16": 1e12}
    assert json.loads(sheet.read_text()) == filled
    ran = run("dataset", "init", tmp_path / "c", "--device-spec", sheet, "--device", "x")
    assert (ran.code, "both name a device" in ran.err) == (2, True)
    networks = tmp_path / "networks.csv"
    networks.write_text("model,batch,runtime_s\nresnet18,64,0.004\n")
    ran = run("calibrate", "--from", "no-such-device", "--networks", networks)
    assert (ran.code, "neuralpower dataset init FOLDER --device-spec FILE" in ran.err) == (2, True)


def test_init_overwrites_nothing(tmp_path: Path) -> None:
    done("dataset", "init", tmp_path)
    ran = run("dataset", "init", tmp_path)
    assert (ran.code, "linear.csv: exists already" in ran.err) == (2, True)
    ran = run("dataset", "init", tmp_path, "--kind", "liner")
    assert (ran.code, "did you mean linear" in ran.err) == (2, True)
    (tmp_path / "file").write_text("")
    ran = run("dataset", "init", tmp_path / "file" / "x")
    assert (ran.code, "cannot be written" in ran.err) == (2, True)


# ---- check ----


def test_refused_rows_are_named_by_line_with_the_way_out(tmp_path: Path) -> None:
    table = linear().assign(power_w=100.0).astype({"rows": float})
    table.loc[[2, 5], "runtime_s"] = -1
    table.loc[7, "rows"] = 2.5
    (tmp_path / "dataset.json").write_text('{"schema": 1, "device": "x"}')
    table.to_csv(tmp_path / "linear.csv", index=False)
    ran = run("dataset", "check", tmp_path)
    assert ran.code == 1
    assert ran.out.splitlines() == [
        "linear: 9 of 12 rows usable",
        "  2 rows refused, lines 4, 7: runtime_s is not above 0. Fix: delete the row, or measure it again.",
        "  1 row refused, line 9: rows is not a whole number, 0 or more. "
        "Fix: write a size such as 64; 0 is allowed for a part that is absent.",
        "  power: 0 of 9 powers are usable, 10 needed "
        "(of rows of 100 us or more, or with energy_u_rel up to 0.1)",
    ]
    assert "3 refused, 9 usable. Next: neuralpower train-predictor" in ran.err
    found = json.loads(run("dataset", "check", tmp_path, "--json").out)
    assert found["usable"] == {"linear": 9}
    assert [(row["line"], row["fix"][:6]) for row in found["refused"]] == [
        (4, "delete"),
        (7, "delete"),
        (9, "write "),
    ]


def test_twenty_rows_refused_for_one_reason_are_one_line(tmp_path: Path) -> None:
    table = linear(32).assign(dtype=[f"float{i}x" for i in range(20)] + ["float32"] * 12)
    table.to_csv(tmp_path / "linear.csv", index=False)
    lines = run("dataset", "check", tmp_path / "linear.csv").out.splitlines()
    assert lines[0] == "linear: 12 of 32 rows usable"
    assert len(lines) == 2
    assert lines[1].startswith(
        "  20 rows refused, lines 2, 3, 4, 5, 6, ...: unknown dtype 'float0x': did you"
    )
    assert "and 19 values like it" in lines[1]


def test_a_table_of_anybodys_is_answered_with_the_command_that_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "bench.csv"
    foreign().to_csv(file, index=False)
    ran = run("dataset", "check", file)
    assert (ran.code, "its name is not a layer kind; add --kind" in ran.err) == (2, True)
    ran = run("dataset", "check", file, "--kind", "linear")
    assert ran.code == 2
    for part in (
        "columns rows, in_features, out_features, bias, runtime_s missing",
        "latency_ms: did you mean runtime_s (seconds)?",
        f"Fix: neuralpower dataset check {file} --kind linear --map rows=M --map in_features=K "
        "--map out_features=N --map runtime_s=latency_ms/1000\n",
    ):
        assert part in ran.err
    ran = run("dataset", "check", file, *MAPPED)  # the columns now say which kind it is
    assert (ran.code, ran.out) == (0, "linear: 12 of 12 rows usable\n")
    assert "add --device NAME --out FOLDER" in ran.err


def test_a_mapped_table_is_written_and_trained(tmp_path: Path) -> None:
    file, out = tmp_path / "bench.csv", tmp_path / "datasets" / "mine"
    again = foreign().head(3).assign(latency_ms=lambda rows: rows.latency_ms * 1.02)
    pd.concat([foreign(), again]).to_csv(file, index=False)
    ran = run("dataset", "check", file, *MAPPED, "--out", out)
    assert (ran.code, "which device was measured? Add --device" in ran.err) == (2, True)
    ran = run("dataset", "check", file, *MAPPED, "--device", "My GPU", "--out", out)
    assert ran.code == 0, ran.err
    # of 1 and 1.02: deviation 0.01 sqrt(2), mean 1.01
    assert (
        ran.out
        == "linear: 15 of 15 rows usable; 12 configurations: repeats are averaged (typical spread 1.4 %)\n"
    )
    assert json.loads((out / "dataset.json").read_text()) == {"schema": 1, "device": "My GPU"}
    written = pd.read_csv(out / "linear.csv")
    assert written["repeats"].tolist() == [2] * 3 + [1] * 9
    assert written["runtime_s"].tolist() == pytest.approx(
        [t * (1.01 if i < 3 else 1) for i, t in enumerate(linear().runtime_s)]
    )
    assert written["runtime_spread"][:3].tolist() == pytest.approx([0.02 / 2**0.5 / 1.01] * 3)
    assert written["bias"].all()
    ran = run("train-predictor", out, "--learner", "lasso", "--jobs", 1, "--out", tmp_path / "p.json", "-q")
    assert ran.code == 0, ran.err
    assert ran.out.startswith("Typical error on held-out rows: ")
    ran = run("dataset", "check", file, *MAPPED, "--device", "My GPU", "--out", out)
    assert (ran.code, "linear.csv: exists already" in ran.err) == (2, True)
    ran = run("dataset", "check", file, *MAPPED, "--device", "Other", "--out", out)
    assert (ran.code, "is for My GPU, but the rows are of Other" in ran.err) == (2, True)


def test_an_expression_that_is_none_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "linear.csv"
    linear().to_csv(file, index=False)
    for given, said in (
        ("runtime_s=__import__('os')", "write numbers, column names"),
        ("runtime_s=latency", "unknown column 'latency'"),
        ("runtime_s", "must be COLUMN=EXPRESSION"),
    ):
        ran = run("dataset", "check", file, "--map", given)
        assert (ran.code, ran.out, ran.err.count("\n"), said in ran.err) == (2, "", 1, True), ran.err


def test_a_table_where_a_folder_is_expected_is_answered_with_the_command(tmp_path: Path) -> None:
    file = tmp_path / "linear.csv"
    linear().to_csv(file, index=False)
    for command in (("train-predictor", file), ("dataset", "inspect", file)):
        ran = run(*command)
        assert ran.code == 2
        assert f"Fix: neuralpower dataset check {file} --device NAME --out FOLDER" in ran.err
    ran = run("train-predictor", tmp_path)
    assert "has no dataset.json; it needs at least" in ran.err
    assert f"Fix: neuralpower dataset init {tmp_path} --device NAME" in ran.err


def test_a_device_is_named_once(tmp_path: Path) -> None:
    (tmp_path / "dataset.json").write_text('{"schema": 1, "device": "x"}')
    linear().to_csv(tmp_path / "linear.csv", index=False)
    ran = run("dataset", "check", tmp_path, "--device", "y")
    assert (ran.code, "names the device; leave it out" in ran.err) == (2, True)
    ran = run(
        "dataset", "check", tmp_path / "linear.csv", "--out", tmp_path / "out"
    )  # dataset.json beside it
    assert ran.code == 0, ran.err
    assert json.loads((tmp_path / "out" / "dataset.json").read_text())["device"] == "x"
    assert "is empty" in run("dataset", "inspect", "").err


def test_networks_are_checked_as_training_reads_them(tmp_path: Path) -> None:
    layers = json.dumps([["linear", linear(1).drop(columns="runtime_s").iloc[0].to_dict(), 3]], default=float)
    layers = layers.replace("64.0", "64").replace("256.0", "256").replace("100.0", "100")
    table = pd.DataFrame({"model": "mine", "batch": 1, "layers": layers, "time_us": [30.0, -1.0, 40.0]})
    file, out = tmp_path / "network.csv", tmp_path / "out"
    table.to_csv(file, index=False)
    ran = run("dataset", "check", file, "--map", "runtime_s=time_us/1e6", "--device", "x", "--out", out)
    assert (ran.code, ran.out.splitlines()[0]) == (1, "network: 2 of 3 rows usable")
    assert "1 row refused, line 3: runtime_s is not above 0" in ran.out
    assert pd.read_csv(out / "network.csv")["runtime_s"].tolist() == pytest.approx([3e-5, 4e-5])


# ---- inspect, merge ----


def test_inspect_says_what_there_is_and_what_is_too_little(tmp_path: Path) -> None:
    meta = {"schema": 1, "device": "NVIDIA L40S", "sessions": [{"utc": "2026-01-02T03:04:05"}]}
    (tmp_path / "dataset.json").write_text(json.dumps(meta))
    pd.concat([linear(12), linear(2).assign(dtype="bfloat16")]).to_csv(tmp_path / "linear.csv", index=False)
    softmax = pd.DataFrame({"rows": [8, 8, 16], "width": 64, "runtime_s": [2e-4, 2.2e-4, -1], "power_w": 80})
    softmax.to_csv(tmp_path / "softmax.csv", index=False)
    text = done("dataset", "inspect", tmp_path)
    for line in (
        f"{tmp_path}: NVIDIA L40S (nvidia, peaks known)",
        "measured: 2026-01-02, 1 session",
        "rows: 16 usable, 1 refused (reasons: neuralpower dataset check)",
        "noise: one measurement varies by 6.7 %",  # 0.2 and 0.22: 0.0141 over 0.21
        "power: usable in 1 of 15 rows",
        "too little to train (10 configurations needed): linear matrix (bfloat16, forward) 2, "
        "softmax short 1",
    ):
        assert line in text.splitlines()
    assert "linear   float32   forward    12  10.1 us to 11.2 us" in text
    found = json.loads(done("dataset", "inspect", tmp_path, "--json"))
    assert [(row["kind"], row["dtype"], row["rows"], row["powers"]) for row in found["rows"]] == [
        ("linear", "bfloat16", 2, 0),
        ("linear", "float32", 12, 0),
        ("softmax", "float32", 1, 1),
    ]
    assert found["too_few"][1] == {"group": "softmax short", "configurations": 1}


def test_merge_is_below_dataset_too(tmp_path: Path) -> None:
    for name, width in (("a", 64), ("b", 65)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "dataset.json").write_text('{"schema": 1, "device": "x"}')
        rows = pd.DataFrame({"rows": [8], "width": width, "runtime_s": 1e-5, "config_id": f"c{width}"})
        rows.to_parquet(tmp_path / name / "softmax.parquet", index=False)
    out = tmp_path / "c"
    assert "shard-001-a: 1 rows (softmax 1)" in done(
        "dataset", "merge", tmp_path / "a", tmp_path / "b", "--out", out
    )
    assert len(read_dataset(out)) == 2
    ran = run("dataset", "check", out, "--out", tmp_path / "d")
    assert (ran.code, f"neuralpower dataset merge {out} --out FOLDER" in ran.err) == (2, True)


# ---- the documented examples ----


def documented(number: int) -> str:
    """The n-th CSV file of the page on datasets."""
    page = (Path(__file__).parents[2] / "docs" / "datasets.md").read_text()
    return re.findall(r"```csv\n(.*?)```", page, re.S)[number]


def test_the_documented_table_is_read_as_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "datasets.md").read_text()
    (tmp_path / "bench.csv").write_text(documented(0))
    monkeypatch.chdir(tmp_path)
    told, shown = re.findall(r"^\$ neuralpower (dataset check .*)\n(.*)\n", page, re.M)
    refused = run(*shlex.split(told[0]))
    assert all(part in refused.err for part in re.split(r", \.\.\. ", told[1]))
    assert done(*shlex.split(shown[0])) == f"{shown[1]}\n"


def test_the_documented_networks_are_read(tmp_path: Path) -> None:
    file = tmp_path / "networks.csv"
    file.write_text(documented(1))
    found, refused, _ = read_measurements(file)
    assert refused == []
    assert [one.request.phase.context for one in found] == [None, None, 512]
    assert found[0].request.input_shape == (3, 224, 224)
