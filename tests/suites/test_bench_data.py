"""Images reach a network: Caffe's databases and folders of files, cropped, flipped and batched."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import pickle
import random
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from neuralpower.errors import DeviceError, InputError
from neuralpower.networks.inputs.inputs import Inputs
from neuralpower.suites.bench.data import (
    CaffeStore,
    Datum,
    Endless,
    FolderStore,
    Images,
    Lane,
    Loaded,
    Synthetic,
    augmented,
    crop_box,
    open_store,
    parse_datum,
    picture,
)
from neuralpower.suites.bench.distributed import World
from tests import caffe

CPU = torch.device("cpu")


def raw(label: int = 0, channels: int = 3, height: int = 6, width: int = 5) -> Datum:
    size = channels * height * width
    return Datum(channels, height, width, bytes(i % 251 for i in range(size)), label)


def file_of(color: tuple[int, int, int], form: str = "PNG", size: tuple[int, int] = (8, 8)) -> bytes:
    written = io.BytesIO()
    Image.new("RGB", size, color).save(written, form)
    return written.getvalue()


def folder_of(root: Path, classes: int = 2, each: int = 3) -> Path:
    """Images of class i have red 100 + i."""
    for label, number in itertools.product(range(classes), range(each)):
        file = root / f"class{label}" / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(file_of((100 + label, 20, 30)))
    return root


# ---- Datum ----


def test_a_datum_is_read_byte_by_byte() -> None:
    # keys: 1 << 3 | 0 = 08, 10, 18; 4 << 3 | 2 = 22; 5 << 3 | 0 = 28
    # label 300 = 0b10_0101100: 0x2c + 0x80, then 2
    message = bytes.fromhex("08 01 10 01 18 02 22 02 07 ff 28 ac 02".replace(" ", ""))
    assert parse_datum(message) == Datum(1, 1, 2, b"\x07\xff", 300)


@pytest.mark.parametrize("packed", [False, True])
def test_what_is_written_is_read(packed: bool) -> None:
    floats = Datum(1, 1, 3, label=2, float_data=(0.5, -1.0, 300.0))
    for datum in (raw(7), floats, Datum(data=b"\xff\xd8 no real image", label=1, encoded=True)):
        assert parse_datum(caffe.message(datum, packed=packed)) == datum


def test_unknown_fields_are_passed_over() -> None:
    # field 15: 78 with varint 5, 79 with 8 bytes, 7a with 1 byte, 7d with 4 bytes
    foreign = b"\x78\x05" + b"\x79" + bytes(8) + b"\x7a\x01x" + b"\x7d" + bytes(4)
    assert parse_datum(foreign + caffe.message(raw()) + foreign) == raw()


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (caffe.message(raw())[:40], "ends .* bytes before field 4 does: it is cut off"),
        (b"\x08", "ends within a number: it is cut off"),
        (b"\x08" + b"\xff" * 11, "a number of more than 10 bytes"),
        (b"\x0b", "field 1 of wire type 3: not a Datum"),
        (b"\x0a\x01x", "field 1 has wire type 2: not a Datum"),
        (b"", "a Datum of 0x0x0 with 0 values"),
        (caffe.message(Datum(3, 2, 2, bytes(11))), "a Datum of 3x2x2 with 11 values"),
        (caffe.message(Datum(encoded=True)), "a Datum of 0x0x0 with 0 values"),
    ],
)
def test_what_is_no_datum_is_refused(message: bytes, says: str) -> None:
    with pytest.raises(InputError, match=says):
        parse_datum(message)


def test_pictures_of_a_datum() -> None:
    # [channel, row, column] = 30 * channel + 5 * row + column
    assert picture(raw()).getpixel((4, 1)) == (9, 39, 69)
    assert picture(raw(channels=1)).mode == "L"
    floats = Datum(1, 1, 3, float_data=(0.6, -1.0, 300.0))
    assert list(picture(floats).tobytes()) == [1, 0, 255]
    assert picture(Datum(data=file_of((1, 2, 3)), encoded=True)).getpixel((0, 0)) == (1, 2, 3)
    with pytest.raises(InputError, match="4 channels: must be 1 or 3"):
        picture(raw(channels=4))


# ---- stores ----


def test_a_database_gives_images_and_labels(tmp_path: Path) -> None:
    encoded = Datum(data=file_of((9, 8, 7), "JPEG"), label=1, encoded=True)
    store = open_store(
        "caffe_lmdb", caffe.write(tmp_path / "db", [caffe.message(raw(3)), caffe.message(encoded)])
    )
    assert len(store.items) == 2
    assert [store.read(i)[1] for i in range(2)] == [3, 1]
    assert store.read(0)[0].size == (5, 6)
    assert store.read(1)[0].size == (8, 8)


def test_a_database_survives_the_way_to_another_process(tmp_path: Path) -> None:
    store = CaffeStore(caffe.write(tmp_path / "db", [caffe.message(raw(3))]))
    store.read(0)
    packed = pickle.dumps(store)
    del store  # a process opens a database once
    assert pickle.loads(packed).read(0)[1] == 3


def test_loader_processes_read_a_database_that_this_one_has_open(tmp_path: Path) -> None:
    store = CaffeStore(caffe.write(tmp_path / "db", [caffe.message(raw(i)) for i in range(4)]))
    assert store.read(3)[1] == 3
    loaded = Loaded(Images(store, 3, 4), 2, CPU, torch.float32, classes=4, workers=2)
    assert [b.target.tolist() for b in (loaded(), loaded(), loaded()) if b.target is not None] == [
        [0, 1],
        [2, 3],
        [0, 1],
    ]
    assert loaded.images.skipped == 0
    loaded.close()


def test_a_database_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file or folder"):
        open_store("caffe_lmdb", tmp_path / "missing")
    with pytest.raises(InputError, match="has no data.mdb, so it is not an LMDB"):
        CaffeStore(tmp_path)
    (tmp_path / "data.mdb").write_bytes(b"something else" * 1000)
    with pytest.raises(InputError, match="not an LMDB .*MDB_INVALID"):
        CaffeStore(tmp_path)
    with pytest.raises(InputError, match="an empty database"):
        CaffeStore(caffe.write(tmp_path / "empty", []))
    with pytest.raises(InputError, match="not an LMDB of Caffe: "):
        CaffeStore(caffe.write(tmp_path / "other", [b"a value of somebody else"]))


def test_a_database_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    where = caffe.write(tmp_path / "db", [caffe.message(raw(i, height=40, width=40)) for i in range(40)])
    file = where / "data.mdb"
    whole = file.stat().st_size
    with file.open("r+b") as opened:
        opened.truncate(whole // 2)
    with pytest.raises(
        InputError, match=r"data\.mdb: is cut off, [\d,]+ of [\d,]+ bytes; copy the database again"
    ):
        CaffeStore(where)


def test_a_folder_gives_images_by_class(tmp_path: Path) -> None:
    (folder_of(tmp_path) / "class1" / "notes.txt").write_text("no image")
    store = FolderStore(tmp_path)
    assert store.classes == ["class0", "class1"]
    assert [store.read(i)[1] for i in range(len(store.items))] == [0, 0, 0, 1, 1, 1]
    assert store.read(5)[0].getpixel((0, 0)) == (101, 20, 30)


def test_a_folder_without_classes_or_images_is_refused(tmp_path: Path) -> None:
    (tmp_path / "loose.jpg").write_bytes(file_of((1, 2, 3), "JPEG"))
    with pytest.raises(InputError, match="has no folder of images per class"):
        open_store("image_folder", tmp_path)
    (tmp_path / "cats").mkdir()
    with pytest.raises(InputError, match="1 classes without an image file"):
        open_store("image_folder", tmp_path)


def test_an_unreadable_image_is_counted_and_the_next_one_taken(tmp_path: Path) -> None:
    folder_of(tmp_path)
    (tmp_path / "class0" / "0.png").write_bytes(b"no image")
    whole = file_of((100, 20, 30), size=(64, 64))
    (tmp_path / "class0" / "1.png").write_bytes(whole[: len(whole) // 2])
    images = Images(FolderStore(tmp_path), 3, 4)
    pixels, label = images[0]
    assert (pixels[:, 0, 0].tolist(), label) == ([100, 20, 30], 0)
    assert images.skipped == 2


def test_what_two_loader_processes_pass_over_is_counted_together(tmp_path: Path) -> None:
    folder_of(tmp_path)
    (tmp_path / "class0" / "0.png").write_bytes(b"no image")
    images = Images(FolderStore(tmp_path), 3, 4)
    # one image a batch, in turn by two processes: both have met the broken one after two epochs and one batch
    loaded = Loaded(images, 1, CPU, torch.float32, workers=2)
    for _ in range(2 * len(images) + 1):
        loaded()
    assert loaded.images.skipped >= 2
    loaded.close()


def test_a_folder_of_unreadable_images_is_refused(tmp_path: Path) -> None:
    for file in folder_of(tmp_path).glob("*/*.png"):
        file.write_bytes(b"no image")
    with pytest.raises(InputError, match="none of its 6 images can be read"):
        Images(FolderStore(tmp_path), 3, 4)[2]


# ---- crops ----


def test_a_crop_is_inside_and_of_the_stated_area_and_shape() -> None:
    generator = random.Random(0)
    for _ in range(300):
        left, upper, right, lower = crop_box(80, 60, generator)
        assert 0 <= left < right <= 80 and 0 <= upper < lower <= 60
        assert 0.07 <= (right - left) * (lower - upper) / 4800 <= 1
        assert 0.7 <= (right - left) / (lower - upper) <= 1.42


def test_a_very_long_image_is_cropped_in_its_middle() -> None:
    # every draw is higher than 1 pixel; 1 * 4/3 = 1.33, rounded 1, in the middle of 1000
    assert crop_box(1000, 1, random.Random(0)) == (499, 0, 500, 1)


def test_an_image_becomes_a_square_of_bytes_and_is_flipped_half_of_the_time() -> None:
    pixels = np.zeros((10, 10, 3), np.uint8)
    pixels[:, 5:] = 200
    image, generator = Image.fromarray(pixels), random.Random(0)
    seen = [augmented(image, 3, 4, generator) for _ in range(400)]
    assert all(s.shape == (3, 4, 4) and s.dtype == torch.uint8 for s in seen)
    wide = [s for s in seen if s[0, 0, 0] != s[0, 0, 3]]
    flipped = sum(bool(s[0, 0, 0] > s[0, 0, 3]) for s in wide)
    assert 0.4 < flipped / len(wide) < 0.6
    assert augmented(image, 1, 4, generator).shape == (1, 4, 4)


# ---- batches ----


def test_numbers_go_on_without_an_end() -> None:
    assert list(itertools.islice(Endless(3), 7)) == [0, 1, 2, 0, 1, 2, 0]


def test_shuffled_epochs_are_whole_and_differ() -> None:
    numbers = list(itertools.islice(Endless(8, shuffle=True, seed=1), 16))
    assert sorted(numbers[:8]) == sorted(numbers[8:]) == list(range(8))
    assert numbers[:8] != numbers[8:]
    assert numbers == list(itertools.islice(Endless(8, shuffle=True, seed=1), 16))


def test_processes_see_different_images() -> None:
    shares = [list(itertools.islice(Endless(6, shuffle=True, rank=rank, world=2), 3)) for rank in (0, 1)]
    assert sorted(shares[0] + shares[1]) == list(range(6))


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_images(tmp_path: Path, workers: int) -> None:
    images = Images(FolderStore(folder_of(tmp_path)), 3, 4)
    loaded = Loaded(images, 4, CPU, torch.float16, classes=2, workers=workers)
    batches = [loaded() for _ in range(3)]
    loaded.close()
    # 6 images, taken as 0 1 2 3 | 4 5 0 1 | 2 3 4 5
    assert [b.target.tolist() for b in batches if b.target is not None] == [
        [0, 0, 0, 1],
        [1, 1, 0, 0],
        [0, 1, 1, 1],
    ]
    x = batches[0].inputs.args[0]
    assert (x.shape, x.dtype) == ((4, 3, 4, 4), torch.float16)
    assert x[:, 0, 0, 0].tolist() == [100, 100, 100, 101]


def test_the_second_process_sees_the_other_images(tmp_path: Path) -> None:
    images = Images(FolderStore(folder_of(tmp_path)), 3, 4)
    loaded = Loaded(images, 3, CPU, torch.float32, world=World(2, 1))
    # 1, 3, 5 of classes 0 0 0 1 1 1
    assert loaded().inputs.args[0][:, 0, 0, 0].tolist() == [100, 101, 101]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_class_too_many_and_images_too_broken_are_one_line(tmp_path: Path, workers: int) -> None:
    images = Images(FolderStore(folder_of(tmp_path / "good", classes=3, each=1)), 3, 4)
    loaded = Loaded(images, 3, CPU, torch.float32, classes=2, workers=workers)
    with pytest.raises(
        InputError, match="good: an image of class 2, the network's classes are 0 to 1; choose other images"
    ):
        loaded()
    loaded.close()
    for file in folder_of(tmp_path / "bad").glob("*/*.png"):
        file.write_bytes(b"no image")
    loaded = Loaded(Images(FolderStore(tmp_path / "bad"), 3, 4), 3, CPU, torch.float32, workers=workers)
    why = "none of its 6 images can be read .cannot identify image file"
    with pytest.raises(InputError, match=f"^[^\n]*bad: {why}.*; give another --data-dir$"):
        loaded()
    loaded.close()


def test_the_next_batch_is_copied_beside_the_step(tmp_path: Path) -> None:
    told: list[str] = []

    class Noted(Lane):
        def __init__(self) -> None: ...

        @contextlib.contextmanager
        def apart(self) -> Iterator[None]:
            told.append("copy")
            yield

        def join(self, tensors: Sequence[Tensor]) -> None:
            told.append(f"wait for {tensors[0][0, 0, 0, 0].item():.0f} of class {tensors[1][0].item()}")

    images = Images(FolderStore(folder_of(tmp_path)), 3, 4)
    loaded = Loaded(images, 3, CPU, torch.float32, lane=Noted())
    for _ in range(2):
        loaded()
        told.append("step")
    assert told == [
        "copy",
        "wait for 100 of class 0",
        "copy",
        "step",
        "wait for 101 of class 1",
        "copy",
        "step",
    ]


def test_a_loader_process_that_dies_is_told(tmp_path: Path) -> None:
    class Deadly(FolderStore):
        def read(self, number: int) -> tuple[Image.Image, int]:
            os.kill(os.getpid(), signal.SIGKILL)
            raise AssertionError("alive")

    loaded = Loaded(Images(Deadly(folder_of(tmp_path)), 3, 4), 3, CPU, torch.float32, workers=1)
    with pytest.raises(
        DeviceError, match="DataLoader worker .*choose a smaller batch or --num-loader-threads 0"
    ):
        loaded()
    loaded.close()


def test_one_synthetic_batch_is_used_again() -> None:
    x = torch.randn(4, 2)
    synthetic = Synthetic(Inputs((x,), {"y": torch.arange(4)}), CPU, "pinned")
    assert synthetic.memory == "device"  # on a CPU there is nothing to copy
    first, second = synthetic(), synthetic()
    assert first.inputs.args[0].data_ptr() == second.inputs.args[0].data_ptr() == x.data_ptr()
    assert first.inputs.kwargs["y"].tolist() == [0, 1, 2, 3]


def test_a_shuffled_synthetic_batch_has_its_rows_in_another_order() -> None:
    x = torch.arange(16.0).reshape(16, 1)
    synthetic = Synthetic(Inputs((x,)), CPU, "device", shuffle=True)
    orders = [synthetic().inputs.args[0].flatten().tolist() for _ in range(2)]
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(16))
