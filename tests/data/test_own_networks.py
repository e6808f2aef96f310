"""Tables of networks that somebody timed on one GPU: whose columns they have, and what is left out."""

from pathlib import Path

import pytest

from neuralpower.data.networks import read_own_networks, reasons
from neuralpower.errors import InputError

GPU = "nvidia-rtx-4090"


def written(folder: Path, text: str) -> Path:
    file = folder / "timed.csv"
    file.write_text(text)
    return file


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ("model,infer_step_time,infer_batch_size,infer_img_size", "resnet50,512,256,224"),
        ("model,image,batch,samples_per_s,step_ms", "resnet50,224,256,500,512"),
        ("model,image,batch,samples_per_s", "resnet50,224,256,500"),
        ("model,image,batch,latency_ms", "timm:resnet50,224,256,512"),
        ("model,input,batch,runtime_s", "timm:resnet50,3x224x224,256,0.512"),
    ],
)
def test_columns_of_timm_and_of_ours_say_the_same(tmp_path: Path, header: str, row: str) -> None:
    (found,), left_out = read_own_networks(written(tmp_path, f"{header}\n{row}\n"), {}, GPU)
    assert (found["model"], int(found["batch"]), found["line"], left_out) == ("timm:resnet50", 256, 2, [])
    assert found["input"] == '{"input_shape": [3, 224, 224]}'
    assert found["runtime_s"] == pytest.approx(0.512)


def test_columns_are_mapped_either_way_and_words_are_written_as_they_are(tmp_path: Path) -> None:
    file = written(tmp_path, "net,size,took_us\nzoo:resnet18,8,2000\n")
    columns = {"net": "model", "batch": "size", "runtime_s": "took_us/1e6", "run": "compile"}
    (found,), _ = read_own_networks(file, columns, GPU)
    assert (found["model"], found["run"]) == ("zoo:resnet18", "compile")
    assert found["runtime_s"] == pytest.approx(0.002)


def test_rows_of_other_devices_and_of_training_are_left_out_and_said(tmp_path: Path) -> None:
    rows = "a,1,1,RTX 4090,infer\nb,1,1,RTX 3090,infer\nc,1,1,,train\nd,1,1,,\n"
    kept, left_out = read_own_networks(
        written(tmp_path, f"model,batch,runtime_s,device,phase\n{rows}"), {}, GPU
    )
    assert [row["model"] for row in kept] == ["a", "d"]
    assert list(reasons(left_out)) == [
        f"skipped: measured on RTX 3090, not on {GPU} (line 3)",
        "skipped: phase train: only forward passes move factors (line 4)",
    ]


def test_rows_of_one_network_become_their_median_or_contradict_each_other(tmp_path: Path) -> None:
    rows = "a,1,1.0\na,1,1.1\na,1,1.2\nb,1,1.0\nb,1,2.0\nb,2,2.0\n"
    kept, left_out = read_own_networks(written(tmp_path, f"model,batch,runtime_s\n{rows}"), {}, GPU)
    assert [(row["model"], row["runtime_s"]) for row in kept] == [("a", 1.1), ("b", 2.0)]
    assert [row.line for row in left_out] == [5, 6]
    assert left_out[0].reason == "lines 5 and 6 are the same network in 1 and 2 s"


def test_a_file_without_a_time_is_refused_with_the_option_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="column runtime_s missing; --map runtime_s=THEIRS"):
        read_own_networks(written(tmp_path, "model,batch,speed\na,1,2\n"), {}, GPU)
    with pytest.raises(InputError, match="cannot be read"):
        read_own_networks(tmp_path, {}, GPU)
