"""A question that was answered before is answered at once, and every change of what it depends on is seen."""

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from neuralpower.files import cache
from neuralpower.networks.names import sameness
from tests.program import Ran, run

ASKED = ("predict", "zoo:mnist_cnn", "--predictor", "nvidia-t4")
ROOT = Path(__file__).parents[2]


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NEURALPOWER_CACHE", str(tmp_path / "kept"))
    return tmp_path / "kept" / "answers"


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One entry per prediction that was computed."""
    from neuralpower.api import predicting
    from neuralpower.api.predicting import predicted as real

    seen = []

    def counted(predictor: Any, model: str, *args: Any) -> Any:
        seen.append(model)
        return real(predictor, model, *args)

    monkeypatch.setattr(predicting, "predicted", counted)
    return seen


def test_the_second_answer_is_the_first(kept: Path, computed: list[str]) -> None:
    first, second = run(*ASKED), run(*ASKED)
    assert first == second
    assert first.code == 0
    assert len(computed) == 1
    assert len(list(kept.glob("*.json"))) == 1


@pytest.mark.parametrize(
    "other",
    [
        ("--batch-size", 2),
        ("--json",),
        ("--by", "layer"),
        ("--phase", "forward", "--top", 3),
    ],
)
def test_another_question_has_an_answer_of_its_own(kept: Path, computed: list[str], other: Any) -> None:
    first, second = run(*ASKED), run(*ASKED, *other)
    assert second.out != first.out or other[0] == "--phase"
    assert len(computed) == 2


def test_no_cache_and_the_switch_have_it_computed(
    kept: Path, computed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(*ASKED)
    run(*ASKED, "--no-cache")
    for off in ("off", "0", ""):
        monkeypatch.setenv("NEURALPOWER_CACHE", off)
        run(*ASKED)
    assert len(computed) == 5


def test_files_beside_the_answer_are_written_each_time(
    kept: Path, computed: list[str], tmp_path: Path
) -> None:
    for _ in range(2):
        run(*ASKED, "--csv", tmp_path / "rows.csv")
    assert len(computed) == 2


def test_a_low_coverage_ends_with_code_3_again(kept: Path, computed: list[str]) -> None:
    asked = ("predict", "resnet-50", "--device", "aws-graviton3", "--strict", 1)
    first, second = run(*asked), run(*asked)
    assert (first.code, len(computed)) == (3, 1)
    assert second == first


@pytest.mark.parametrize(
    "broken", ["", "{", "[]", '{"schema": 1}', '{"schema": 1, "key": "x", "answer": {}}']
)
def test_a_corrupt_answer_is_as_none(kept: Path, computed: list[str], broken: str) -> None:
    first = run(*ASKED)
    (file,) = kept.glob("*.json")
    file.write_text(broken)
    assert run(*ASKED) == first
    assert len(computed) == 2
    data = json.loads(file.read_text())
    data["answer"] = {"lines": [["rm", "-rf"], 3]}
    file.write_text(json.dumps(data))
    assert run(*ASKED) == first
    assert len(computed) == 3


def question(model: str, **options: Any) -> str:
    asked = sameness.question_of(model, options)
    assert asked is not None
    return cache.key_of(asked)


def test_what_an_answer_depends_on_is_in_its_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "net"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "bert"}')
    seen = {question("net")}
    (folder / "config.json").write_text('{"model_type": "roberta"}')
    seen.add(question("net"))
    Path("sheet.json").write_text("1")
    seen |= {question("net", device="sheet.json"), question("net", predictor="x@sheet.json")}
    Path("sheet.json").write_text("2")
    seen |= {question("net", device="sheet.json"), question("net", predictor="x@sheet.json")}
    Path("models").mkdir()
    Path("models/new.json").write_text("{}")
    seen.add(question("net"))
    monkeypatch.setenv("NEURALPOWER_MOST_MODULES", "7")
    seen.add(question("net"))
    monkeypatch.setattr(sameness, "version_of", lambda package: "another")
    seen.add(question("net"))
    monkeypatch.setattr(sameness, "stamps_of", lambda *of: [("changed", 0, 0)])
    seen.add(question("net"))
    assert len(seen) == 10
    assert question("net") in seen


def test_a_library_that_was_changed_in_place_has_an_answer_computed_again(
    kept: Path, computed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "configuration_own.py"
    file.write_text("hidden_size = 4")
    module = ModuleType("transformers.models.own")
    module.__file__ = str(file)
    monkeypatch.setitem(sys.modules, module.__name__, module)  # as a model that the answer is of
    assert run(*ASKED) == run(*ASKED)
    assert len(computed) == 1
    file.write_text("hidden_size = 8")
    assert run(*ASKED) == run(*ASKED)
    assert len(computed) == 2
    file.unlink()
    run(*ASKED)
    assert len(computed) == 3


def test_a_library_that_lies_over_another_has_answers_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "timm"]:
        monkeypatch.delitem(sys.modules, name)
    seen = {question("zoo:mnist_cnn")}
    (tmp_path / "timm").mkdir()
    (tmp_path / "timm" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    seen.add(question("zoo:mnist_cnn"))
    (tmp_path / "timm" / "__init__.py").write_text("changed = True")
    seen.add(question("zoo:mnist_cnn"))
    assert len(seen) == 3


@pytest.mark.parametrize(
    "model", ["net.py:make", "package.module:make", "net.pt2", "hf:org/name", "no model"]
)
def test_code_and_what_is_fetched_is_never_kept(model: str) -> None:
    assert sameness.question_of(model, {}) is None


def test_what_was_not_asked_for_longest_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MOST_BYTES", 480)
    a, b, c, d = keys = [letter * 40 for letter in "abcd"]
    for number, key in enumerate((a, b, c)):
        cache.keep(tmp_path, key, {"lines": ["x" * 60]})
        os.utime(tmp_path / "answers" / f"{key}.json", (number, number))
    assert cache.recall(tmp_path, a) is not None
    cache.keep(tmp_path, d, {"lines": ["x" * 60]})
    assert [key for key in keys if cache.recall(tmp_path, key)] == [a, c, d]
    cache.keep(tmp_path / "file", "e", {})
    (tmp_path / "plain").write_text("")
    cache.keep(tmp_path / "plain", "e", {})
    assert cache.recall(tmp_path / "plain", "e") is None


KEY = "0" * 40


def test_the_cache_removes_only_what_it_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "answers"
    folder.mkdir()
    strangers = ("thesis.txt", "notes.json", f"{'1' * 40}.json", ".hidden", f"{'2' * 39}.json")
    for name in strangers:
        (folder / name).write_text("x" * 500)
        os.utime(folder / name, (0, 0))
    (folder / "below").mkdir()
    (folder / f"{'3' * 40}.json").symlink_to(folder / "thesis.txt")
    own = [folder / f".{'4' * 40}.17.new", folder / f"{'5' * 40}.json"]
    own[0].write_text("half of an ans")
    cache.keep(tmp_path, "5" * 40, {"lines": ["x"]})
    for file in own:
        os.utime(file, (1, 1))
    monkeypatch.setattr(cache, "MOST_BYTES", 200)
    cache.keep(tmp_path, KEY, {"lines": ["x" * 60]})
    left = {file.name for file in folder.iterdir()}
    assert left == {*strangers, "below", f"{'3' * 40}.json", f"{KEY}.json"}


def test_the_cache_s_folders_are_for_its_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        cache.keep(tmp_path / "a" / "b", KEY, {"lines": ["x"]})
    finally:
        os.umask(before)
    modes = [(tmp_path / place).stat().st_mode & 0o777 for place in ("a/b", "a/b/answers")]
    assert modes == [0o700, 0o700]
    assert (tmp_path / f"a/b/answers/{KEY}.json").stat().st_mode & 0o777 == 0o600


def test_an_entry_of_another_user_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.keep(tmp_path, KEY, {"lines": ["theirs"]})
    assert cache.recall(tmp_path, KEY) == {"lines": ["theirs"]}
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)  # as this user is another one then
    assert cache.recall(tmp_path, KEY) is None
    cache.keep(tmp_path, KEY, {"lines": ["mine"]})
    monkeypatch.undo()
    assert cache.recall(tmp_path, KEY) == {"lines": ["theirs"]}


@pytest.mark.parametrize("kind", ["pipe", "link", "link to nothing", "folder", "device", "linked folder"])
def test_only_a_plain_file_is_an_entry(tmp_path: Path, kind: str) -> None:
    cache.keep(tmp_path / "true", KEY, {"lines": ["x"]})
    true, entry = tmp_path / "true" / "answers", tmp_path / "answers" / f"{KEY}.json"
    if kind == "linked folder":
        entry.parent.symlink_to(true)
    else:
        entry.parent.mkdir()
    if kind == "pipe":
        os.mkfifo(entry)
    elif kind == "link":
        entry.symlink_to(true / f"{KEY}.json")
    elif kind == "link to nothing":
        entry.symlink_to(tmp_path / "nothing")
    elif kind == "folder":
        entry.mkdir()
    elif kind == "device":
        entry.symlink_to("/dev/zero")
    before = entry.lstat()
    assert cache.recall(tmp_path, KEY) is None
    cache.keep(tmp_path, KEY, {"lines": ["new"]})
    assert entry.lstat().st_ino == before.st_ino
    assert not (tmp_path / "nothing").exists()
    assert cache.recall(tmp_path, KEY) is None


def test_an_entry_without_lines_is_computed_again(kept: Path, computed: list[str]) -> None:
    first = run(*ASKED)
    (file,) = kept.glob("*.json")
    broken: list[dict[str, Any]] = [{"lines": []}, {}, {"exit_code": 1}, {"coverage_error": "x"}]
    for answer in broken:
        file.write_text(json.dumps({**json.loads(file.read_text()), "answer": answer}))
        assert run(*ASKED) == first
    assert len(computed) == 5


def test_a_home_that_nobody_has_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURALPOWER_CACHE", "~nobody-of-that-name/x")
    ran = run(*ASKED)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == (
        "error: NEURALPOWER_CACHE '~nobody-of-that-name/x': no user has that home folder; "
        "give a folder, or 'off'\n"
    )


def test_a_kept_answer_imports_neither_torch_nor_transformers(kept: Path) -> None:
    asked = ["predict", "smollm2-135m?num_hidden_layers=1", "--predictor", "t4"]
    program = (
        "import sys\nfrom neuralpower.cli import main\n"
        f"sys.argv = {['neuralpower', *asked]!r}\n"
        "try:\n    main()\nexcept SystemExit as stop:\n    assert not stop.code, stop.code\n"
        "print(sorted({'torch', 'transformers', 'numpy', 'pandas'} & set(sys.modules)), file=sys.stderr)\n"
    )
    first = run(*asked)
    command = [sys.executable, "-c", program]
    second = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    assert second.stdout == first.out
    assert second.stderr.splitlines()[-1] == "[]"


def test_a_run_is_printed_as_it_was(kept: Path) -> None:
    first = run("predict", "smollm2-135m?num_hidden_layers=1", "--predictor", "nvidia-t4")
    assert "was published in bfloat16" in first.out
    assert isinstance(first, Ran)
    assert run("predict", "smollm2-135m?num_hidden_layers=1", "--predictor", "nvidia-t4") == first


def test_a_fit_that_says_no_is_kept_with_its_exit_code(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ("fit", "zoo:deep_mnist", "--device", "cpu", "--memory", "1MB")
    first = run(*asked)
    assert first.code == 1 and "does not fit" in first.out
    assert len(list(kept.glob("*.json"))) == 1
    monkeypatch.setattr(import_module("neuralpower.prediction.fits.fit"), "fit", None)  # not asked again
    assert run(*asked) == first
