"""`neuralpower paradnn`: old flags, defaults, refusals, sweeps, and tables filled from a predictor."""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from neuralpower.data.dataset import Dataset
from neuralpower.layers import KINDS
from neuralpower.layers.optimizer import Optimizer
from neuralpower.layers.rows import to_row
from neuralpower.learn.files.predictor_json import save
from neuralpower.learn.predictor import Predictor
from neuralpower.learn.train import train
from neuralpower.measure.collect.plan import draw
from neuralpower.suites.paradnn.command import KMP, TPU_FLAGS, intel_openmp
from neuralpower.suites.paradnn.points import Point
from neuralpower.suites.paradnn.run import predict_point, predictable
from neuralpower.suites.paradnn.sweep import Setup, read_results
from tests.program import done, run

HEADER = "device,input_type,layers,nodes,batch_size,input_size,output_size,#params,duration,tflops"
TINY = "--layers 2 --nodes 8 --batch_size 4 --input_size 6 --output_size 3".split()
TINY += "--warmup_steps 1 --train_steps 2".split()
STEPS = "--warmup_steps 0 --train_steps 1 --mode infer".split()
POINT = Point.of(
    "fc", "paradnn", {"layers": 3, "nodes": 512, "input_size": 256, "output_size": 64, "batch_size": 128}
)


def seconds(kind: str, flops: int, elements: int) -> float:
    """A device whose time is known: 1 TFLOP/s of products, 1e10 elements per second of anything else."""
    return 1e-6 + (flops / 1e12 if kind == "linear" else elements / 1e10)


def table(kind: str, phases: tuple[str, ...]) -> pd.DataFrame:
    rows = []
    for layer in draw(KINDS[kind], 60, seed=1):
        if isinstance(layer, Optimizer) and layer.function != "rmsprop":
            continue
        time = seconds(kind, int(layer.flops()), int(getattr(layer, "elements", 0)))
        for phase in phases:
            rows.append(
                {**to_row(layer), "phase": phase, "runtime_s": time * (2 if phase == "backward" else 1)}
            )
    return pd.DataFrame(rows)


@pytest.fixture(scope="module")
def trained() -> Predictor:
    tables = {
        "linear": table("linear", ("forward", "backward")),
        "activation": table("activation", ("forward", "backward")),
        "optimizer": table("optimizer", ("optimizer",)),
    }
    return train(
        Dataset(Path("made-up"), {"schema": 1, "device": "Made Up"}, tables), learner="lasso", jobs=1
    ).predictor


# ---- one point ----


def test_a_single_run_prints_what_the_older_program_printed() -> None:
    lines = done("paradnn", "fc", *TINY).splitlines()
    assert lines[0].startswith("torch: ")
    assert {
        "layers: 2",
        "nodes: 8",
        "batch_size: 4",
        "input_size: 6",
        "output_size: 3",
        "input_type: f32",
    } <= set(lines)
    assert "mode: train, optimizer: rms" in lines
    assert any(line.startswith("Duration: ") and line.endswith("(2 steps after 1)") for line in lines)
    assert any(line.startswith("TFLOPS: ") for line in lines)


def defaults(*arguments: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(done("paradnn", *arguments, *STEPS, "--json", "--predict"))
    return found


def test_defaults_are_those_of_the_older_programs(trained: Predictor, tmp_path: Path) -> None:
    save(trained, tmp_path / "p.json")
    chosen = ("--predictor", str(tmp_path / "p.json"))
    assert defaults("fc", *chosen)["labels"] == "layer_8-node_1024-input_1000-output_100-bs_1024"
    assert (
        defaults("fc", "--tf-defaults", *chosen)["labels"] == "layer_4-node_1024-input_1000-output_100-bs_128"
    )
    found = defaults("cnn", *chosen)
    assert (found["labels"], found["kind"]) == ("block_1-filter_16-input_224-output_1000-bs_8", "residual")
    found = defaults("rnn", "--length", "4", *chosen)
    assert (found["labels"], found["kind"]) == ("layer_5-embed_100-length_4-vocab_1024-bs_128", "lstm")


def test_flags_of_the_tensorflow_programs_are_understood() -> None:
    found = json.loads(
        done(
            *"paradnn fc --layer 1 --node 4 --batch_size 2 --input_size 3 --output_size 2".split(),
            *"--data_type half --warmup_steps 2 --train_steps 3 --mode inference".split(),
            *"--mkl 1 --intra 0 --inter 0 --json".split(),
        )
    )
    assert (found["schema"], found["labels"]) == (1, "layer_1-node_4-input_3-output_2-bs_2")
    assert (found["input_type"], found["mode"], found["steps"], found["warmup_steps"]) == (
        "f16",
        "infer",
        3,
        2,
    )
    text = "--input_size 4,8,6 --layer 1 --cell gru --batch_size 2".split()
    found = json.loads(done("paradnn", "rnn", *text, *STEPS, "--json"))
    assert found["labels"] == "layer_1-embed_6-length_4-vocab_8-bs_2"
    image = [
        "--resnet_layers",
        "1,1,1,1",
        "--block_fn",
        "bottleneck",
        "--filters",
        "1",
        "--input_size",
        "193",
    ]
    found = json.loads(done("paradnn", "cnn", *image, "--batch_size", "1", *STEPS, "--json"))
    assert (found["labels"], found["kind"]) == ("block_1-filter_1-input_193-output_1000-bs_1", "bottleneck")


@pytest.mark.parametrize("flag", TPU_FLAGS)
def test_flags_of_tpus_are_refused_by_name(flag: str) -> None:
    ran = run("paradnn", "fc", f"--{flag}=yes")
    assert ran.code == 2
    assert ran.err.startswith(f"error: --{flag}: is for TPUs")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("fc --nosuch 3", 2, "unknown option: --nosuch"),
        ("fc 3", 2, "argument '3': unexpected"),
        ("fc --input_type f8", 2, "unknown input_type 'f8'"),
        ("fc --input_type f32,f16", 2, "input_type 'f32,f16': only a sweep accepts several"),
        ("fc --mode evaluate", 2, "unknown phase 'evaluate'"),
        ("fc --use_gpu 2", 2, "use_gpu 2: 0 is the CPU, 1 the first GPU"),
        ("fc --device tpu", 2, "unknown device 'tpu'"),
        ("fc --optimizer lion", 2, "unknown optimizer 'lion'"),
        ("fc --rmsprop-compat jax", 2, "unknown RMSprop 'jax'"),
        ("fc --variant dense", 2, "unknown variant of fully connected networks 'dense'"),
        ("fc --nodes 0", 2, "nodes 0: must be 1 or more"),
        ("fc --train_steps 0", 2, "300 warm-up and 0 timed steps"),
        ("fc --intra -1", 2, "intra -1, inter 0: must be numbers of threads"),
        ("fc -b --grid", 2, "--benchmark varies one size at a time"),
        ("fc -b --operators", 2, "--operators with a sweep: is for a single run here"),
        ("fc --predict --operators", 2, "neuralpower predict 'zoo:paradnn_fc?layers=8&nodes=1024"),
        ("fc -b --again broken", 2, "unknown state 'broken'"),
        ("fc -b --shard 3/2", 2, "shard '3/2': write I/N"),
        ("fc -b --point-budget 0", 2, "point budget '0': write a positive number"),
        ("fc -b --time-budget 0", 2, "time budget '0': write a positive number"),
        ("fc --layers 128 --nodes 8192 --batch_size 16384", 4, "the largest that fits is --"),
        ("cnn --input_size 192", 2, "image of 192 pixels: the 7x7 average pool needs"),
        ("cnn --resnet_layers 3,4,6,3", 2, "all groups need the same number of blocks"),
        ("cnn --resnet_layers 3,4", 2, "resnet_layers '3,4': write 4 whole numbers"),
        ("rnn --input_size 50,1024", 2, "input_size '50,1024': write 3 whole numbers"),
        ("rnn --input_size 50,1024,100 --length 7", 2, "and --length 7: they differ"),
        ("fc --out here", 2, "--out here: needs a sweep; add --benchmark"),
        ("fc --slurm 8", 2, "--slurm 8: needs a sweep"),
        ("fc --shard 2/8", 2, "--shard 2/8: needs a sweep"),
        ("fc -b --json", 2, "--json is for a single run"),
        ("merge nowhere", 2, "nowhere: has no results"),
        ("report nowhere", 2, "nowhere: has no results"),
        ("report nowhere --formats gif,doc", 2, "unknown format of pictures 'gif'"),
        ("matmul --size 0", 2, "size 0, 20 warm-up"),
        ("matmul --size 8 --device tpu", 2, "unknown device 'tpu'"),
        ("matmul --size 8 --device mps", 2, "unknown device 'mps'"),
        ("matmul --size 8 --device cuda:99", 4, "device cuda:99: "),
        ("roof --measure cuda:99", 4, "choose one of `neuralpower devices`"),
        ("roof --measure tpu --size 8", 2, "unknown device 'tpu'"),
        ("roof", 2, "no device given: name a spec sheet"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(arguments: str, code: int, message: str) -> None:
    ran = run("paradnn", *arguments.split())
    assert (ran.code, ran.out) == (code, "")
    assert message in ran.err and ran.err.count("\n") == 1


def test_operator_times_of_a_run_are_printed() -> None:
    text = done("paradnn", "fc", *TINY, "--operators")
    assert ["kind", "runtime", "of", "a", "step", "share"] in [line.split() for line in text.splitlines()]
    assert "linear (backward)" in text and "optimizer" in text


def test_intel_s_openmp_is_set_before_torch_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in KMP:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    assert not intel_openmp()  # torch is loaded
    assert not set(KMP) & set(os.environ)
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setenv("KMP_BLOCKTIME", "7")
    assert intel_openmp()
    assert os.environ["KMP_BLOCKTIME"] == "7"
    assert os.environ["KMP_AFFINITY"] == "granularity=fine,compact,1,0"


# ---- sweeps ----


@pytest.mark.slow
def test_a_sweep_prints_rows_resumes_and_is_merged_and_shown(tmp_path: Path, trained: Predictor) -> None:
    save(trained, tmp_path / "p.json")
    base = ["paradnn", "fc", "--sample", "9", "--seed", "1", "--variant", "paradnn", "--mode", "infer"]
    base += ["--predictor", str(tmp_path / "p.json"), "--train_steps", "10"]
    first = run(*base, "--out", tmp_path / "a")
    assert first.code == 0, first.err
    assert first.out.splitlines()[0] == HEADER and len(first.out.splitlines()) == 10
    assert "9 ok of 9 points" in first.err
    again = run(*base, "--out", tmp_path / "a")
    assert again.out == HEADER + "\n" and "9 ok of 9 points" in again.err
    for shard in ("1/2", "2/2"):
        done(*base, "--out", tmp_path / "b", "--shard", shard)
    assert len(read_results(tmp_path / "b")) == 9
    text = done("paradnn", "merge", tmp_path / "a" / "results.csv", tmp_path / "b")
    assert sorted(text.splitlines()) == sorted(first.out.splitlines())
    page = done("paradnn", "report", tmp_path / "a", "--out", tmp_path / "page", "--formats", "svg").strip()
    assert page == str(tmp_path / "page" / "paradnn.html")
    assert len(list((tmp_path / "page" / "pictures").glob("*.svg"))) > 8
    assert len(pd.read_csv(tmp_path / "page" / "points.csv")) == 9
    assert (tmp_path / "page" / "paradnn.md").read_text().startswith("# ParaDnn")


def test_a_measured_sweep_stores_what_does_not_fit(tmp_path: Path) -> None:
    asked = "paradnn fc -b --layers 128 --nodes 8192 --input_type f64,f32 --shard 2/150 --out".split()
    ran = run(*asked, tmp_path)
    assert ran.code == 0
    assert ran.out == HEADER + "\n"
    found = json.loads((tmp_path / "shard-2-of-150" / "results.json").read_text())
    assert {(r["states"], r["input_type"]) for r in found} == {("oom", "f64"), ("oom", "f32")}
    assert "the largest that fits" in found[0]["reason"]


def test_a_job_array_is_printed() -> None:
    text = done("paradnn", "cnn", "--grid", "--use_gpu", "1", "--slurm", "12")
    assert "#SBATCH --array=1-12" in text
    assert text.endswith(
        'srun neuralpower paradnn cnn --grid --use_gpu 1 --shard "$SLURM_ARRAY_TASK_ID/12"\n'
    )


@pytest.mark.parametrize(
    ("asked", "gpu"),
    [
        (("--use_gpu", "1"), True),
        (("--use-gpu=1",), True),
        (("--device", "gpu"), True),
        (("--device", "cuda:1"), True),
        (("--out", "cuda-and-cpu"), False),
    ],
)
def test_a_job_array_asks_for_a_gpu_where_its_points_run_on_one(asked: tuple[str, ...], gpu: bool) -> None:
    assert ("#SBATCH --gres=gpu:1\n" in done("paradnn", "fc", "--grid", *asked, "--slurm", "2")) is gpu


def test_a_square_product_and_roofs_are_printed() -> None:
    found = json.loads(done("paradnn", "matmul", "--size", "32", "--steps", "2", "--warmup", "1", "--json"))
    assert (found["schema"], found["size"], found["dtype"], found["tf32"]) == (1, 32, "float32", False)
    lines = done("paradnn", "roof", "nvidia-t4", "nvidia-a100-80gb-pcie").splitlines()
    assert lines[2].startswith("NVIDIA Tesla T4, float32") and lines[2].split()[-2:] == ["8.14", "320.00"]
    assert lines[3].split()[-2:] == ["19.49", "1935.00"]


# ---- predicted ----


def test_a_training_step_is_predicted_from_all_three_phases(trained: Predictor) -> None:
    setup, changed = predictable(Setup(steps=10), trained)
    assert (setup.mode, changed) == ("train", "")
    result = predict_point(POINT, setup, trained)
    # 256 * 512 + 2 * 512 * 512 + 512 * 64 = 688,128 weights, 128 samples: 176 MFLOP and biases, at 1 TFLOP/s;
    # 3 activations of 128 * 512 elements at 1e10/s; backward takes twice as long
    forward = 2 * 688_128 * 128 / 1e12 + 4e-6 + 3 * (128 * 512 / 1e10 + 1e-6)
    optimizer = (688_128 + 3 * 512 + 64) / 1e10 + 1e-6
    assert result.step_s == pytest.approx(3 * forward + optimizer, rel=0.1)
    assert result.setup.predictor and result.machine == "Made Up"
    assert result.coverage == pytest.approx(1)
    inference = predict_point(POINT, Setup(mode="infer", steps=10), trained)
    assert inference.step_s == pytest.approx(forward, rel=0.1)


def test_what_a_predictor_has_not_trained_is_said(trained: Predictor, tmp_path: Path) -> None:
    save(trained, tmp_path / "p.json")
    asked = ["paradnn", "rnn", "--mode", "infer", "--predictor", tmp_path / "p.json", "--length", "3"]
    single = run(*asked)
    # no recurrent layers and no embedding were learnt
    assert re.search(r"^Coverage: [\d.]+% of the time is trained", single.out, re.M)
    assert "of the time is trained; the other part is a roofline estimate" in single.err
    swept = run(*asked, "--sample", "1", "--cell", "rnn", "--out", tmp_path / "s")
    assert "Warning: layer_" in swept.err
    (found,) = json.loads((tmp_path / "s" / "results.json").read_text())
    assert 0 <= found["coverage"] < 0.9


def test_a_predictor_without_backward_says_that_it_predicts_inference(
    trained: Predictor, tmp_path: Path
) -> None:
    forward = {key: r for key, r in trained.regressors.items() if key[2] == "forward"}
    limited = replace(trained, regressors=forward, name="limited")
    setup, changed = predictable(Setup(), limited)
    assert setup.mode == "infer"
    assert changed == "limited was not trained on backward and optimizer; inference is predicted instead"
    save(limited, tmp_path / "limited.json")
    ran = run("paradnn", "fc", "--predict", "--predictor", tmp_path / "limited.json", "--nodes", "64")
    assert ran.code == 0
    assert "Note: " in ran.err and "inference is predicted instead" in ran.err
    assert "mode: infer" in ran.out
    assert run("paradnn", "fc", "--predictor", tmp_path / "limited.json", "--input_type", "f16").code == 2
