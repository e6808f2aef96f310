"""Networks measured elsewhere, compared with predictions."""

import json
from pathlib import Path

import pytest

from neuralpower.devices.spec import find_spec
from neuralpower.errors import InputError
from neuralpower.layers.linear import Linear
from neuralpower.prediction.evaluation.measured import baseline, read_measurements
from tests.program import done, run

DEEP = "zoo:deep_mnist"


def written(folder: Path, text: str) -> Path:
    file = folder / "networks.csv"
    file.write_text(text)
    return file


# ---- the file ----


def test_each_column_is_read_into_the_question(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        "# measured by hand\n"
        "model,batch_size,dtype,phase,seq_len,context,input_shape,device,latency_ms\n"
        "transformers:gpt2,8,bfloat16,decode,,512,,h100,5.5\n"
        "\n"
        "transformers:bert,,float32,,128,,,l40s,2\n"
        "zoo:resnet18,4,,training,,,3x64x64,,30\n",
    )
    found, refused, notes = read_measurements(file, device="t4")
    assert (refused, notes) == ([], ["latency_ms counts as runtime_s = latency_ms/1000"])
    step, text, image = found
    assert (step.request.batch_size, step.request.dtype, step.request.way) == (8, "bfloat16", "forward")
    assert (step.request.phase.name, step.request.phase.context, step.line) == ("decode", 512, 3)
    assert step.measured_s == pytest.approx(5.5e-3)
    assert step.device == "h100"
    assert (text.request.batch_size, text.request.seq_len, text.line) == (1, 128, 5)
    assert (image.request.input_shape, image.request.way, image.device) == ((3, 64, 64), "training", "t4")


def test_names_of_datasets_and_other_units_are_read_too(tmp_path: Path) -> None:
    file = written(
        tmp_path, 'network,batch,input,time_us\nzoo:resnet18,2,"{""input_shape"": [3, 32, 32]}",700\n'
    )
    (one,), refused, _ = read_measurements(file)
    assert (one.request.model, one.request.batch_size, one.request.input_shape) == (
        "zoo:resnet18",
        2,
        (3, 32, 32),
    )
    assert one.measured_s == pytest.approx(7e-4)
    assert refused == []


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("zoo:deep_mnist,1,float32,forward,0", "runtime_s is not above 0"),
        ("zoo:deep_mnist,1,float32,forward,soon", "runtime_s is not a number"),
        (",1,float32,forward,1", "model is empty"),
        ("zoo:deep_mnist,1.5,float32,forward,1", "batch_size is '1.5', but must be a whole number"),
        ("zoo:deep_mnist,1,float31,forward,1", "unknown dtype 'float31': did you mean"),
        ("zoo:deep_mnist,1,float32,backwards,1", "unknown phase 'backwards': did you mean backward"),
        ("net.py:f,1,float32,forward,1", "would run code"),
    ],
)
def test_a_row_that_is_wrong_is_named_by_its_line_and_the_others_are_read(
    tmp_path: Path, row: str, said: str
) -> None:
    file = written(tmp_path, f"model,batch_size,dtype,phase,runtime_s\nzoo:deep_mnist,1,,,0.001\n{row}\n")
    found, (line,), _ = read_measurements(file)
    assert (len(found), said in line) == (1, True), line
    assert line.startswith(f"{file} line 3: ")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "cannot be read"),
        ("a,b\n1,2\n", "column model and runtime_s missing .times: runtime_s, or latency_s, latency_ms"),
        ("model,speed\nzoo:deep_mnist,2\n", "column runtime_s missing"),
    ],
)
def test_a_file_of_another_kind_is_refused_with_an_example(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as refused:
        read_measurements(written(tmp_path, text))
    assert "model,batch_size,dtype,latency_ms" in str(refused.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    for file in (tmp_path / "absent.csv", tmp_path):
        with pytest.raises(InputError, match="cannot be read"):
            read_measurements(file)


# ---- the roofline of a spec sheet ----


def test_the_baseline_is_made_from_the_spec_sheet_alone() -> None:
    spec = find_spec("l40s")
    found = baseline(spec.hardware(), spec.slug)
    assert (found.name, found.regressors, found.others) == ("roofline", {}, ())
    assert "bfloat16" in found.dtypes
    layer = Linear(rows=4096, in_features=4096, out_features=4096, bias=False, dtype="bfloat16")
    (seconds,) = found.estimate([layer]).runtime_s
    # 2 * 4096^3 = 137.4 GFLOP at 65 % of the sheet's peak, and a launch
    least = layer.flops() / spec.peak_flops["bfloat16"]
    assert least / 0.65 <= seconds <= least / 0.65 + 2e-5


# ---- the command ----


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two networks whose times are those that the roofline predicts, one of them doubled."""
    text = "model,batch_size,dtype,device,latency_ms\n"
    for model, batch in ((DEEP, 4), (DEEP, 64)):
        given = ("predict", model, "--batch-size", batch, "--device", "l40s", "--json")
        seconds = json.loads(done(*given))["runtime_s"]["value"]
        text += f"{model},{batch},float32,l40s,{1e3 * seconds * (1 if batch == 4 else 2)}\n"
    return written(tmp_path_factory.mktemp("measured"), text)


def test_predictors_are_compared_side_by_side(measured: Path) -> None:
    ran = run("evaluate", "--measured", measured, "--predictor", "neuralpower,roofline")
    assert ran.code == 0, ran.err
    header, _, four, many, explained, _, _, _, own, roof = ran.out.splitlines()
    assert header.split("  ")[0] == "network"
    assert [name in header for name in ("device", "measured", "neuralpower error", "roofline inside")] == [
        True
    ] * 4
    assert " +0.0%" in four and " -50.0%" in many
    assert explained.startswith("(error: predicted over measured, minus 1")
    # errors of 0 and 50 %: median and mean 25 %
    assert own.split()[:5] == ["neuralpower", "2", "25.0%", "25.0%", "-50.0%"]
    assert roof.split()[:2] == ["roofline", "2"]
    assert "Note: latency_ms counts as runtime_s = latency_ms/1000" in ran.err


def test_the_json_of_a_comparison_holds_the_same(measured: Path) -> None:
    found = json.loads(done("evaluate", "--measured", measured, "--json"))  # the device's own predictor
    assert found["schema"] == 1
    assert [one["line"] for one in found["networks"]] == [2, 3]
    errors = [one["predictors"]["neuralpower"]["error"] for one in found["networks"]]
    assert errors == pytest.approx([0.0, -0.5], abs=1e-6)
    summary = found["summary"]["neuralpower"]
    assert summary["mean"] == pytest.approx(0.25)
    inside = [one["predictors"]["neuralpower"]["inside"] for one in found["networks"]]
    assert (inside[0], summary["inside"]) == (True, sum(inside) / 2)


@pytest.mark.parametrize("ending", ["html", "png"])
def test_a_comparison_is_drawn(measured: Path, ending: str) -> None:
    file = measured.with_name(f"scatter.{ending}")
    done("evaluate", "--measured", measured, "--predictor", "roofline", "--plot", file)
    data = file.read_bytes()
    assert data.startswith(b"\x89PNG") if ending == "png" else b"roofline" in data and b"equal" in data


def test_what_cannot_be_compared_is_said_and_the_rest_is(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        f"model,batch_size,device,latency_ms\n{DEEP},1,l40s,1\n{DEEP},2,,1\nzoo:absent,1,l40s,1\n{DEEP},0,l40s,1\n",
    )
    ran = run("evaluate", "--measured", file, "--predictor", "roofline")
    assert ran.code == 2
    assert f"Warning: {DEEP} b2, roofline: predictor roofline needs the device" in ran.err
    assert "zoo:absent" in ran.err
    assert f"Warning: {file} line 5: batch_size is '0'" in ran.err
    assert ran.err.splitlines()[-1].endswith("1 rows could not be compared; see the warnings above")
    assert ran.out.splitlines()[-1].split()[:2] == ["roofline", "1"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "name models, or give --measured FILE.csv"),
        ((DEEP, "--plot", "x.html"), "--plot belongs to --measured"),
        ((DEEP, "--device", "l40s"), "give --measured FILE.csv"),
        ((DEEP, "--measured", "x.csv"), f"names the networks; leave {DEEP} out"),
        (("--measured", "x.csv", "--plot", "x.gif"), "x.gif"),
        (("--measured", "x.csv"), "x.csv: cannot be read"),
    ],
)
def test_options_that_do_not_go_together_are_refused(arguments: tuple[str, ...], said: str) -> None:
    ran = run("evaluate", *arguments)
    assert (ran.code, ran.out, said in ran.err) == (2, "", True), ran.err


def test_a_predictor_named_twice_or_of_another_device_is_said(measured: Path) -> None:
    ran = run("evaluate", "--measured", measured, "--predictor", "roofline,roofline")
    assert (ran.code, "roofline is given twice" in ran.err) == (2, True)
    ran = run("evaluate", "--measured", measured, "--predictor", "nvidia-t4")
    assert "Note: predictor nvidia-t4 is for " in ran.err
    assert ", but rows are from l40s" in ran.err
