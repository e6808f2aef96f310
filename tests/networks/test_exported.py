"""Exported programs of strangers: nothing in a .pt2 runs, and it is refused in one line."""

from __future__ import annotations

import collections
import io
import json
import pickle
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from neuralpower.cli import main
from neuralpower.errors import ModelError
from neuralpower.networks.libraries.exported import check_exported
from neuralpower.networks.sources import InputRequest, resolve

Files = dict[str, bytes]


class Runs:
    """Unpickled, it makes a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        """What unpickling calls."""
        return Path.touch, (self.marker,)


class Net(nn.Module):
    """A parameter, a buffer, a constant, a nested input, a computed size, a region without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({"a-b": nn.Linear(4, 4)})
        self.shift: torch.Tensor
        self.register_buffer("shift", torch.ones(4))

    def forward(self, x: torch.Tensor, *, more: dict[str, torch.Tensor]) -> dict[str, Any]:
        with torch.no_grad():
            y = self.parts["a-b"](x) + more["scale"]
        return {"out": torch.cat([y, x + self.shift * torch.tensor([1.0, 2, 3, 4])]), "rows": 2 * x.shape[0]}


@pytest.fixture(scope="module")
def program() -> torch.export.ExportedProgram:
    """`Net`, for 2 to 64 rows."""
    shapes = {"x": {0: torch.export.Dim("batch", min=2, max=64)}, "more": {"scale": None}}
    inputs = (torch.randn(3, 4),), {"more": {"scale": torch.ones(1)}}
    return torch.export.export(Net(), *inputs, dynamic_shapes=shapes)


@pytest.fixture(scope="module")
def new_layout(program: torch.export.ExportedProgram) -> Files:
    """The files of an archive as this torch writes it."""
    written = io.BytesIO()
    torch.export.save(program, written)
    with zipfile.ZipFile(written) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def flat_layout(program: torch.export.ExportedProgram) -> Files:
    """The files of an archive as torch wrote it up to 2.7."""
    from torch._export.serde.schema import SCHEMA_VERSION
    from torch._export.serde.serialize import serialize

    made = serialize(program)
    return {
        "version": ".".join(map(str, SCHEMA_VERSION)).encode(),
        "serialized_exported_program.json": made.exported_program,
        "serialized_state_dict.pt": made.state_dict,
        "serialized_constants.pt": made.constants,
        "serialized_example_inputs.pt": made.example_inputs,
    }


def zipped(files: Files, path: Path, compression: int = zipfile.ZIP_STORED) -> Path:
    """An archive of files; a later file of the same name does not replace the earlier one."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def saved(value: Any) -> bytes:
    """What torch.save writes."""
    written = io.BytesIO()
    torch.save(value, written)
    return written.getvalue()


def ending(files: Files, end: str) -> str:
    """The one name that ends so."""
    (name,) = [name for name in files if name.endswith(end)]
    return name


def refusal(path: Path) -> str:
    """What is said of the file, in one line, with exit code 2."""
    with pytest.raises(ModelError) as refused:
        resolve(str(path))
    assert refused.value.exit_code == 2
    (line,) = str(refused.value).splitlines()
    return line


# ---- harmless archives ----


def test_a_program_of_this_torch_is_loaded(new_layout: Files, tmp_path: Path) -> None:
    path = zipped(new_layout, tmp_path / "net.pt2")
    source = resolve(str(path))
    module = source.build("cpu")
    inputs = source.inputs(module, InputRequest(5))
    assert module(*inputs.args, **inputs.kwargs)["out"].shape == (10, 4)


def test_the_flat_layout_is_loaded(flat_layout: Files, tmp_path: Path) -> None:
    source = resolve(str(zipped(flat_layout, tmp_path / "net.pt2")))
    module = source.build("cpu")
    inputs = source.inputs(module, InputRequest(3))
    assert module(*inputs.args, **inputs.kwargs)["rows"] == 6


def test_a_program_whose_sizes_are_guarded_passes(tmp_path: Path) -> None:
    """The export writes what it assumed, as L['x'].size()[0] % 3 == 0, and torch runs that as Python."""

    class Parted(nn.Module):
        def forward(self, x: torch.Tensor, more: dict[str, list[torch.Tensor]]) -> torch.Tensor:
            y = more["k-1"][0]
            rows = x.shape[0]
            return (
                x.reshape(rows // 3, -1).sum() + y.sum()
                if rows % 3 == 0 and 2 * y.shape[0] > rows
                else y.sum()
            )

    any_size = {0: torch.export.Dim.AUTO}
    inputs = torch.randn(6, 4), {"k-1": [torch.randn(5, 4)]}
    program = torch.export.export(Parted(), inputs, dynamic_shapes=(any_size, {"k-1": [any_size]}))
    torch.export.save(program, tmp_path / "net.pt2")
    with zipfile.ZipFile(tmp_path / "net.pt2") as archive:
        assert json.loads(archive.read("net/models/model.json"))["guards_code"]
    assert resolve(str(tmp_path / "net.pt2")).build("cpu")(*inputs).shape == ()


@pytest.mark.parametrize(
    "network",
    [
        nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        ),
        nn.Sequential(
            nn.Conv2d(3, 4, 8, 8), nn.Flatten(2), nn.TransformerEncoderLayer(16, 2, batch_first=True)
        ),
    ],
    ids=["convolutions", "attention"],
)
def test_usual_networks_pass(network: nn.Module, tmp_path: Path) -> None:
    exported = torch.export.export(network.eval(), (torch.randn(2, 3, 32, 32),))
    torch.export.save(exported, tmp_path / "net.pt2")
    check_exported(tmp_path / "net.pt2")


# ---- pickles ----


def put(name: str, content: Callable[[Path], bytes]) -> Callable[[Files, Path], Files]:
    """Files in which one has other content."""
    return lambda files, marker: {**files, (ending(files, name) if "*" not in name else ""): content(marker)}


def with_payload(folder: str, **entry: Any) -> Callable[[Files, Path], Files]:
    """Files whose weights or constants name one more payload, a pickle that runs."""

    def change(files: Files, marker: Path) -> Files:
        config = ending(files, f"model_{folder}_config.json")
        content = json.loads(files[config])
        shape = {"dtype": 7, "sizes": [], "requires_grad": False, "device": {"type": "cpu", "index": None}}
        meta = {**shape, "strides": [], "storage_offset": {"as_int": 0}, "layout": 7}
        payload = {"is_param": False, "use_pickle": True, "tensor_meta": meta, **entry}
        content["config"]["evil"] = payload
        return {
            **files,
            config: json.dumps(content).encode(),
            config.rpartition("/")[0] + f"/{payload['path_name']}": entry_content(
                payload["path_name"], marker
            ),
        }

    return change


def entry_content(name: str, marker: Path) -> bytes:
    """A pickle as torch writes such a payload: opaque objects by pickle, all else by torch.save."""
    return pickle.dumps(Runs(marker)) if name.startswith("opaque") else saved(Runs(marker))


def legacy(name: str) -> Callable[[Files, Path], Files]:
    """Files with one that takes the place of a config and its payloads, as torch 2.8 wrote it."""

    def change(files: Files, marker: Path) -> Files:
        root = next(iter(files)).partition("/")[0]
        return {**files, f"{root}/data/{name}": saved({"evil": Runs(marker)})}

    return change


HIDDEN = {
    "sample inputs": put("data/sample_inputs/model.pt", lambda m: saved(((Runs(m),), {}))),
    "sample inputs, a bare pickle": put("data/sample_inputs/model.pt", lambda m: pickle.dumps(Runs(m))),
    "a weight": with_payload("weights", path_name="weight_99"),
    "a constant": with_payload("constants", path_name="tensor_99"),
    "an opaque object": with_payload("constants", path_name="opaque_obj_0"),
    "a custom object": with_payload("constants", path_name="custom_obj_0"),
    "a weight by another way": with_payload("weights", path_name="../constants/tensor_0"),
    "weights of torch 2.8": legacy("weights/model.pt"),
    "constants of torch 2.8": legacy("constants/model.pt"),
}


@pytest.mark.parametrize("hide", HIDDEN.values(), ids=HIDDEN)
def test_no_pickle_of_the_new_layout_runs(
    hide: Callable[[Files, Path], Files], new_layout: Files, tmp_path: Path
) -> None:
    path = zipped(hide(new_layout, tmp_path / "ran"), tmp_path / "net.pt2")
    assert refusal(path).startswith(f"{path} is not loaded: ")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("change", ["a pickle", "a formula", "no zip"])
def test_the_program_refuses_in_one_line_with_code_2(
    change: str,
    new_layout: Files,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    files = {
        "a pickle": lambda: HIDDEN["sample inputs"](new_layout, tmp_path / "ran"),
        "a formula": lambda: changed(new_layout, GRAPHS["a formula that imports"]),
        "no zip": lambda: {},
    }[change]()
    monkeypatch.setattr(sys, "argv", ["neuralpower", "predict", str(zipped(files, tmp_path / "net.pt2"))])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {tmp_path / 'net.pt2'} is no")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("part", ["state_dict", "constants", "example_inputs"])
@pytest.mark.parametrize("suffix", [".pt", ".json"])
def test_no_pickle_of_the_flat_layout_runs(
    part: str, suffix: str, flat_layout: Files, tmp_path: Path
) -> None:
    files = {name: content for name, content in flat_layout.items() if part not in name}
    files[f"serialized_{part}{suffix}"] = saved({"evil": Runs(tmp_path / "ran")})
    path = zipped(files, tmp_path / "net.pt2")
    assert f"{path} is not loaded: serialized_{part}{suffix} is a pickle of more" in refusal(path)
    assert not (tmp_path / "ran").exists()


def test_the_hostile_files_do_run_where_nobody_looks(new_layout: Files, tmp_path: Path) -> None:
    """The tests above would assert nothing if torch refused these files, too."""
    files = HIDDEN["sample inputs"](new_layout, tmp_path / "ran")
    with pytest.raises(Exception, match="."):
        torch.export.load(zipped(files, tmp_path / "net.pt2"))
    assert (tmp_path / "ran").exists()


# ---- the graph ----


def changed(files: Files, change: Callable[[dict[str, Any]], None]) -> Files:
    """Files with another graph."""
    name = next(n for n in files if n.endswith(("models/model.json", "exported_program.json")))
    program = json.loads(files[name])
    change(program)
    return {**files, name: json.dumps(program).encode()}


def first_formula(program: dict[str, Any], text: str) -> None:
    """Put a text where the size of the first dynamic axis stands."""
    for value in program["graph_module"]["graph"]["tensor_values"].values():
        for size in value["sizes"]:
            if "as_expr" in size:
                size["as_expr"]["expr_str"] = text
                return
    raise AssertionError("no dynamic size")


def first_target(program: dict[str, Any], text: str) -> None:
    """Put a text where the first operator stands."""
    program["graph_module"]["graph"]["nodes"][0]["target"] = text


def specification(program: dict[str, Any], **spec: Any) -> None:
    """Let the network return something else."""
    signature = program["graph_module"]["module_call_graph"][0]["signature"]
    signature["out_spec"] = json.dumps([1, {"context": "null", "children_spec": [], **spec}])


FACTORY = json.dumps({"default_factory_module": "evil", "default_factory_name": "x", "dict_context": []})
GRAPHS: dict[str, Callable[[dict[str, Any]], None]] = {
    "a formula that imports": lambda p: first_formula(p, "__import__('pathlib').Path('ran').touch()"),
    "a formula with an attribute": lambda p: first_formula(p, "Symbol('s0').__class__"),
    "a formula that evaluates": lambda p: first_formula(p, "eval('1')"),
    "a formula with a text": lambda p: first_formula(p, "Symbol('__import__(1)')"),
    "a formula with a comprehension": lambda p: first_formula(p, "[x for x in (1,)][0]"),
    "a formula with a lambda": lambda p: first_formula(p, "(lambda: 1)()"),
    "a guard that imports": lambda p: p.update(
        guards_code=["__import__('pathlib').Path('ran').touch() is None"]
    ),
    "a guard with an attribute": lambda p: p.update(guards_code=["L['x'].__class__ == 1"]),
    "a guard that calls": lambda p: p.update(guards_code=["L['x'].numpy().tofile('ran') == 1"]),
    "a guard with a key that is code": lambda p: p.update(guards_code=["L['x\"+evil+\"'].size()[0] == 3"]),
    "a guard with a comment": lambda p: p.update(guards_code=["L['x'].size()[0] == 3 # evil"]),
    "an input that is a text": lambda p: p["graph_module"]["graph"]["inputs"].append(
        {"as_string": "' + evil() + '"}
    ),
    "torch.hub": lambda p: first_target(p, "torch.hub.load"),
    "torch.load": lambda p: first_target(p, "torch.load"),
    "a module of torch's": lambda p: first_target(p, "torch.serialization.os.system"),
    "a library": lambda p: first_target(p, "torch.ops.load_library"),
    "a class": lambda p: first_target(p, "torch.ops.aten.__class__.mro"),
    "any call": lambda p: first_target(p, "_operator.call"),
    "any method": lambda p: first_target(p, "_operator.methodcaller"),
    "a file": lambda p: first_target(p, "torch.ops.aten.from_file.default"),
    "an extension": lambda p: first_target(p, "#evil:x"),
    "a name that is code": lambda p: p["graph_module"]["graph"]["nodes"][0].update(name="x; import evil"),
    "a name of a value": lambda p: p["graph_module"]["graph"]["tensor_values"].update({"x\nimport evil": {}}),
    "an argument's name": lambda p: p["graph_module"]["module_call_graph"][0]["signature"].update(
        forward_arg_names=["x=__import__('evil')", "more"]
    ),
    "a parameter's name": lambda p: p["graph_module"]["signature"]["input_specs"][0]["parameter"].update(
        parameter_name='w") + __import__("evil'
    ),
    "a spec that imports": lambda p: specification(p, type="collections.defaultdict", context=FACTORY),
    "an enumeration": lambda p: specification(
        p, type="builtins.dict", context=json.dumps([{"__enum__": True, "fqn": "evil:X", "name": "x"}])
    ),
    "a key that is code": lambda p: specification(
        p, type="builtins.dict", context=json.dumps(["x') or evil('"])
    ),
    "a spec that is none": lambda p: p["graph_module"]["module_call_graph"][0]["signature"].update(
        out_spec="[1, {}]"
    ),
}


@pytest.mark.parametrize("flat", [False, True], ids=["new", "flat"])
@pytest.mark.parametrize("change", GRAPHS.values(), ids=GRAPHS)
def test_no_text_of_the_graph_runs(
    change: Callable[[dict[str, Any]], None],
    flat: bool,
    new_layout: Files,
    flat_layout: Files,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text("open('ran', 'w')")
    monkeypatch.syspath_prepend(tmp_path)
    path = zipped(changed(flat_layout if flat else new_layout, change), tmp_path / "net.pt2")
    assert refusal(path).startswith(f"{path} is not loaded: its graph has the ")
    assert not (tmp_path / "ran").exists()


def test_a_formula_does_run_where_nobody_looks(
    new_layout: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    files = changed(new_layout, GRAPHS["a formula that imports"])
    with pytest.raises(Exception, match="."):
        torch.export.load(zipped(files, tmp_path / "net.pt2"))
    assert (tmp_path / "ran").exists()


def test_compiled_code_is_refused(new_layout: Files, tmp_path: Path) -> None:
    root = next(iter(new_layout)).partition("/")[0]
    files = {**new_layout, f"{root}/data/aotinductor/model/evil.so": b"\x7fELF"}
    path = zipped(files, tmp_path / "net.pt2")
    assert f"the archive holds '{root}/data/aotinductor/model/evil.so'" in refusal(path)


# ---- the zip ----


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "{root}/../../x", "..", "{root}/..\\x", "C:/x", "other/models/model.json"]
)
def test_files_outside_of_the_archive_are_refused(name: str, new_layout: Files, tmp_path: Path) -> None:
    root = next(iter(new_layout)).partition("/")[0]
    path = zipped({**new_layout, name.format(root=root): b""}, tmp_path / "net.pt2")
    assert refusal(path).startswith(f"{path} is not loaded: the archive holds ")


def test_a_bomb_is_not_unpacked(new_layout: Files, tmp_path: Path) -> None:
    root = next(iter(new_layout)).partition("/")[0]
    files = {**new_layout, f"{root}/extra/zeros": bytes(2**24)}
    path = zipped(files, tmp_path / "net.pt2", zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 2**20
    assert "files that are compressed or lie on each other" in refusal(path)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_files_of_one_name_are_refused(new_layout: Files, tmp_path: Path) -> None:
    """Readers of zips take the first or the last of them, and some do not tell capitals."""
    name = ending(new_layout, "data/sample_inputs/model.pt")
    for twin in (name, name.replace("model.pt", "MODEL.pt")):
        path = zipped(new_layout, tmp_path / "net.pt2")
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr(twin, saved(Runs(tmp_path / "ran")))
        assert "two files of one name" in refusal(path)
    assert not (tmp_path / "ran").exists()


def test_what_stands_around_the_zip_is_refused(new_layout: Files, tmp_path: Path) -> None:
    content = zipped(new_layout, tmp_path / "net.pt2").read_bytes()
    other = zipped({"x": b"x"}, tmp_path / "other.zip").read_bytes()
    for whole in (b"#!/bin/sh\n" + content, other + content, content + other):
        (tmp_path / "net.pt2").write_bytes(whole)
        assert "net.pt2 is no" in refusal(tmp_path / "net.pt2")


@pytest.mark.parametrize(
    "content",
    [b"", b"nothing", pickle.dumps(collections.OrderedDict()), b"PK\x03\x04", b"PK\x05\x06" + bytes(18)],
)
def test_what_is_no_zip_is_no_program(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "net.pt2").write_bytes(content)
    assert "net.pt2 is not an exported program of torch" in refusal(tmp_path / "net.pt2")


def test_a_folder_of_that_name_is_no_program(tmp_path: Path) -> None:
    (tmp_path / "net.pt2").mkdir()
    assert "there is no file" in refusal(tmp_path / "net.pt2")
