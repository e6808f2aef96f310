"""The frame of the command line: headings, examples, choices, completion, spellings, formats, checks."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from neuralpower import cli
from neuralpower.ask import words as choices
from neuralpower.cli import help_pages, known_names, output
from neuralpower.cli.commands import respelled
from neuralpower.cli.evaluate import _without_extensions
from neuralpower.cli.formats import form_of
from neuralpower.cli.output import VERBOSE, at_level
from neuralpower.errors import InputError
from neuralpower.files.terminal import unstyled
from neuralpower.layers import KINDS
from neuralpower.learn.train import LEARNERS
from neuralpower.measure.collect.request import ACCELERATOR_PRESETS
from neuralpower.networks.names.catalogue import TASKS
from neuralpower.networks.names.slips import transformers_names, zoo_names
from neuralpower.networks.phases import PREDICTED
from neuralpower.networks.zoo import ZOO
from neuralpower.optimizers.registry import KNOWN
from neuralpower.prediction.evaluation.measured import BEST, ROOFLINE
from neuralpower.prediction.explore.score import BY
from neuralpower.prediction.fits.fit import PHASES as FITTED
from neuralpower.profiling.conventions import CONVENTIONS, UNITS
from neuralpower.profiling.result import SORTS, VIEWS
from neuralpower.profiling.steps import PHASES as RAN
from neuralpower.serving.policies import POLICIES
from neuralpower.suites.bench.results import SUMMARIES
from neuralpower.suites.lab.run import STEPS
from neuralpower.suites.paradnn.run import COMPAT, LAYER_FUNCTIONS
from neuralpower.trace.question import RUNS
from neuralpower.version import __version__
from tests.program import done, run

ROOT = Path(__file__).parents[2]
NETWORK = "zoo:deep_mnist"
BELOW = ("fc", "cnn", "rnn", "report", "merge", "matmul", "roof")  # paradnn
BELOW_DATASET = ("init", "check", "merge", "inspect")
COMMANDS = [
    *(name for name in cli.COMMANDS if name not in ("paradnn", "dataset")),
    *(f"paradnn {name}" for name in BELOW),
    *(f"dataset {name}" for name in BELOW_DATASET),
]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")


# ---- help ----


def test_the_program_alone_says_what_to_try() -> None:
    tried = [line for line in done().splitlines() if line.startswith("  neuralpower ")]
    assert len(tried) == 3


def test_the_help_lists_the_commands_under_their_headings() -> None:
    text = done("-h")
    places = [text.index(f"─ {panel} ") for panel in ("Predict", "Measure", "Learn", "Suites")]
    assert places == sorted(places)
    assert (
        text.index("predict  ") < text.index("profile  ") < text.index("collect-data") < text.index("bench  ")
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_headings_and_examples_and_cuts_no_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text, short = done(*name.split(), "--help"), done(*name.split(), "-h")
    for long, letter in (("--verbose", "-v"), ("--quiet", "-q"), ("--help", "-h")):
        assert f"{letter}, {long}" in text
    assert "\nGeneral:\n" in text and "Exit codes: 0 done" in text
    assert "…" not in text + short
    assert max(map(len, text.splitlines())) <= 80 or "Examples" in text
    assert short.count("\n") <= 30
    for page in (text, short):
        assert page.partition("Examples")[2].count("neuralpower ") >= 2
        assert "[bold]" not in page


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_are_commands_with_options_that_exist(name: str) -> None:
    text = done(*name.split(), "--help")
    usage, _, examples = text.partition("Examples")
    words = " ".join(examples.partition("Exit codes")[0].split()).split()
    for word in words:
        if word.startswith("-"):
            assert word in usage, word


@pytest.mark.parametrize("name", COMMANDS)
def test_an_output_has_its_short_name(name: str) -> None:
    text = done(*name.split(), "--help")
    assert ("--out " in text) == ("-o, --out" in text)
    if name.split()[0] != "paradnn":  # whose -b is --benchmark
        assert ("--batch-size " in text) == ("-b, --batch-size" in text)


def test_short_pages_name_options_and_fields_that_exist() -> None:
    for name, wanted in help_pages.COMMON.items():
        known = {parameter.name for parameter in cli.command_of(name).params}
        assert set(wanted.split()) <= known, name
    for name, more in (
        ("predict", (NETWORK, "--device", "t4")),
        ("fit", (NETWORK, "--device", "t4")),
        ("sweep", (NETWORK, "--device", "t4")),
        ("rank", (NETWORK, "--device", "t4")),
        ("models", ("deep_mnist",)),
        ("doctor", ()),
    ):
        told = json.loads(done(name, *more, "--json"))
        assert set(help_pages.FIELDS[name].split()) <= told.keys(), name


def test_help_of_a_command_by_its_name() -> None:
    assert done("help", "merge") == done("merge", "--help")


# ---- choices ----


@pytest.mark.parametrize(
    ("listed", "known"),
    [
        (choices.PHASES, PREDICTED),
        (choices.FITTED_PHASES, FITTED),
        (choices.RAN_PHASES, RAN),
        (choices.RUNS, RUNS),
        (choices.ROWS, VIEWS),
        (choices.SORTS, SORTS),
        (choices.UNITS, UNITS),
        (choices.CONVENTIONS, CONVENTIONS),
        (choices.OPTIMIZERS, KNOWN),
        (choices.TABLES, [*sorted(KINDS), "network"]),
        (choices.SCORES, BY),
        (choices.SCHEDULERS, [*POLICIES]),
        (choices.LEARNERS, LEARNERS),
        (choices.BASELINES, (BEST, ROOFLINE)),
        (choices.PRESETS, ACCELERATOR_PRESETS),
        (choices.SUMMARIES, [*SUMMARIES, "all"]),
        (choices.LAB_STEPS, [*STEPS, "compare"]),
        (choices.TASKS, [*TASKS, "zoo"]),
        (choices.PARADNN_OPTIMIZERS, LAYER_FUNCTIONS),
        (choices.RMSPROPS, COMPAT),
    ],
)
def test_the_words_of_options_are_those_that_modules_know(listed: Any, known: Any) -> None:
    assert sorted(listed) == sorted(known)


def test_names_read_from_files_are_those_that_are_imported() -> None:
    from transformers.models.auto import configuration_auto

    assert list(zoo_names()) == sorted(ZOO)
    assert transformers_names()[0] >= vars(configuration_auto)["CONFIG_MAPPING_NAMES"].keys()


# ---- checks before torch ----

UNKNOWN = [
    ("fit", NETWORK, "--memory", "nothing"),
    ("sweep", NETWORK, "--memory", "nothing"),
    ("sweep", NETWORK, "--batch-size", "nothing"),
    ("sweep", NETWORK, "--phase", "decode", "--context", "nothing"),
    ("evaluate", "--measured", "nothing.csv"),
    ("dataset", "check", "nothing"),
    ("dataset", "check", "table.csv", "--kind", "nothing"),
    ("dataset", "init", "folder", "--kind", "linear,nothing"),
    ("dataset", "check", "nothing", "--map", "nothing"),
    ("dataset", "inspect", "nothing"),
    ("train-predictor", "nothing"),
    ("predict", "nothing"),
    ("predict", "zoo:nothing"),
    ("predict", "transformers:nothing"),
    ("predict", NETWORK, "--predictor", "nothing"),
    ("predict", NETWORK, "--device", "nothing"),
    ("predict", NETWORK, "--phase", "nothing"),
    ("predict", NETWORK, "--dtype", "nothing"),
    ("predict", NETWORK, "--format", "nothing"),
    ("sweep", NETWORK, "--dtype", "float32,nothing"),
    ("sweep", NETWORK, "--device", "h100,nothing"),
    ("compare", NETWORK, "zoo:nothing"),
    ("compare", NETWORK, "@nothing"),
    ("fit", NETWORK, "--device", "nothing"),
    ("score", "file.jsonl", "--by", "nothing"),
    ("profile", NETWORK, "--device", "nothing"),
    ("evaluate", "zoo:nothing"),
    ("report", "zoo:nothing", "--out", "report"),
    ("calibrate", "--from", "nothing"),
    ("collect-data", "--power", "nothing"),
    ("lab", "nothing"),
    ("models", "--task", "nothing"),
    ("bench", "--phase", "nothing"),
    ("paradnn", "fc", "--phase", "nothing"),
]
CHECKED = """
import contextlib, io, json, sys
from neuralpower import cli
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["neuralpower", *arguments]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), contextlib.suppress(SystemExit):
        cli.main()
    print(json.dumps([err.getvalue(), [name for name in ("torch", "transformers") if name in sys.modules]]))
"""


LISTED = """
from neuralpower import cli
try:
    cli.main()
except SystemExit as stop:
    code = stop.code
heavy = [name for name in ("torch", "transformers", "numpy") if name in sys.modules]
print(code or 0, heavy, file=sys.stderr)
"""


def test_what_is_not_known_is_told_before_torch_is_imported() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", CHECKED, json.dumps(UNKNOWN)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    answers = [json.loads(line) for line in ran.stdout.splitlines()]
    assert len(answers) == len(UNKNOWN)
    for arguments, (said, imported) in zip(UNKNOWN, answers, strict=True):
        assert said.startswith("error: "), arguments
        assert "nothing" in said, arguments
        assert said.count("\n") == 1, arguments
        assert imported == [], arguments


def test_lists_that_need_no_torch_do_not_import_it() -> None:
    for arguments in (("devices", "--specs"), ("devices", "--spec", "h100"), ("models", "llama*", "gpt2")):
        program = f"sys.argv = ['neuralpower', *{arguments}]\n{LISTED}"
        command = [sys.executable, "-c", f"import sys\n{program}"]
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        assert ran.stdout, arguments
        assert ran.stderr == "0 []\n", arguments


def test_a_device_elsewhere_is_told_apart_from_an_unknown_one() -> None:
    said = run("profile", NETWORK, "--device", "h100").err
    assert "this command measures here" in said
    assert "predict --device h100" in said


def test_device_cpu_is_this_machine_in_every_command() -> None:
    named = json.loads(done("predict", NETWORK, "--device", "cpu", "--json"))
    assert named == json.loads(done("predict", NETWORK, "--json"))
    assert "there is no such GPU here" in run("predict", NETWORK, "--device", "cuda:77").err


def test_vector_extensions_are_listed_only_to_who_asks_for_more() -> None:
    extensions = ["avx512f, avx_vnni only there", "sve only here"]
    apart = ["cores 2 there, 4 here", *extensions]
    assert [*_without_extensions(apart)] == apart[:1]
    assert [*_without_extensions(extensions)] == ["other vector extensions (-v lists them)"]
    assert [*_without_extensions([])] == []
    with at_level(VERBOSE):
        assert [*_without_extensions(apart)] == apart


# ---- spellings ----


def test_historic_spellings_are_taken_and_not_listed() -> None:
    plain = done("predict", NETWORK, "--batch-size", 3, "--dtype", "float32")
    assert done("predict", NETWORK, "--batch_size=3", "--dtype", "float") == plain
    assert done("predict", NETWORK, "-b", 3) == plain
    assert "--batch_size" not in done("bench", "-h")


def test_an_option_is_respelled_only_where_the_command_has_it() -> None:
    known = {"--batch-size", "--out", "--seq_len"}
    given = ["--batch_size=3", "--output", "x", "--seq_len", "--other_name", "--", "--batch_size"]
    assert respelled(given, known) == [
        *("--batch-size=3", "--out", "x", "--seq_len", "--other_name", "--"),
        "--batch_size",
    ]


def test_a_step_of_an_engine_is_predicted_from_files_and_texts(tmp_path: Path) -> None:
    (tmp_path / "contexts.txt").write_text("300\n700\n")
    model = (
        "transformers:LlamaForCausalLM?num_hidden_layers=1&vocab_size=500&hidden_size=64&intermediate_size=96"
    )
    how = ("--contexts", tmp_path / "contexts.txt", "--chunks", "100@0,50@200", "--device", "h100-sxm")
    found = json.loads(done("predict", model, "--phase", "step", *how, "--json"))
    assert (found["phase"], found["batch_size"], found["generation"]["tokens"]) == ("step", 4, 152)


def test_the_phase_of_a_benchmark_is_forward_only() -> None:
    said = run("bench", "--model", "deep_mnist", "-b", 1, "--phase", "training", "--forward-only")
    assert (said.code, said.out) == (2, "")
    assert "--phase and --forward-only contradict each other" in said.err


# ---- forms of results ----


def test_the_form_is_that_of_the_option_or_of_the_files_ending() -> None:
    assert form_of(None, None, False) == "table"
    assert form_of(None, Path("a/b.html"), False) == "html"
    assert form_of("csv", Path("a/b.html"), False) == "csv"
    assert form_of(None, None, True) == form_of("json", None, True) == "json"
    with pytest.raises(InputError, match="leave one of them out"):
        form_of("csv", None, True)


RESULTS = [
    (("predict", NETWORK), "kind"),
    (("compare", NETWORK, "zoo:sensor_net"), "name"),
    (("sweep", NETWORK, "-b", "1,2"), "batch_size"),
    (("sweep", NETWORK, "--phase", "training", "-b", "1"), "phase"),
    (("fit", NETWORK, "--memory", "8GB"), "fits"),
    (("score", "candidates.jsonl"), "rank"),
    (("models", "resnet-50", "deep_mnist"), "parameters"),
    (("devices",), "what"),
    (("devices", "--specs"), "device"),
]


@pytest.fixture
def _candidates() -> None:
    Path("candidates.jsonl").write_text(json.dumps({"model": NETWORK}) + "\n")


@pytest.mark.usefixtures("_candidates")
@pytest.mark.parametrize(("command", "column"), RESULTS, ids=[" ".join(c) for c, _ in RESULTS])
def test_a_result_has_every_form(command: tuple[str, ...], column: str) -> None:
    rows = list(csv.DictReader(io.StringIO(done(*command, "--format", "csv"))))
    assert rows
    assert column in rows[0]
    assert done(*command, "--json") == done(*command, "--format", "json")
    written = done(*command, "--format", "md").splitlines()
    rule = next(i for i, line in enumerate(written) if line.startswith("| ---"))
    assert len({line.count("|") for line in written[rule - 1 :]}) == 1
    page = done(*command, "--format", "html")
    assert page.lstrip().lower().startswith("<!doctype html>")
    assert "<table" in page


@pytest.mark.parametrize("command", [("predict", NETWORK), ("sweep", NETWORK, "-b", "1,2")], ids=" ".join)
def test_warnings_are_in_every_form_and_beside_csv(command: tuple[str, ...]) -> None:
    known = (*command, "--device", "t4")  # most of whose time is borrowed
    assert "Warning: " in run(*known, "--format", "csv").err
    for form in ("table", "md", "html"):
        ran = run(*known, "--format", form)
        in_short = command[0] == "predict" and form != "html"  # the first line says how sure it is
        assert ("% measured on this device" if in_short else "Warning: ") in ran.out, form
        assert ran.err == "", form
    assert json.loads(done(*known, "--json"))["warnings"]


def test_a_table_in_a_file_has_no_marks_of_styles() -> None:
    done("predict", NETWORK, "--device", "t4", "-o", "table.txt")
    text = Path("table.txt").read_text()
    assert text == unstyled(text)
    assert "latency " in text


def test_a_result_is_written_where_the_folder_is_not_there_yet() -> None:
    place = Path("deep") / "er" / "rows.json"
    assert done("predict", NETWORK, "-o", place) == ""
    assert json.loads(place.read_text())["model"] == NETWORK
    done("predict", NETWORK, "--csv", "other/rows.csv", "--trace-file", "third/trace.json")
    assert Path("other/rows.csv").is_file()
    assert Path("third/trace.json").is_file()


def test_a_quiet_command_keeps_its_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    with output.at_level(output.QUIET):
        output.tell("note: so it is")
        output.tell("Warning: beware")
    assert capsys.readouterr().err == "Warning: beware\n"
    assert output.level() == output.USUAL


# ---- completion ----


@pytest.fixture
def _shell(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("_NEURALPOWER_COMPLETE", "complete_bash")
    yield


def completed(monkeypatch: pytest.MonkeyPatch, *words: str) -> list[str]:
    """What bash is offered for the last of the words."""
    monkeypatch.setenv("COMP_WORDS", " ".join(["neuralpower", *words]))
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    return run().out.split()


@pytest.mark.usefixtures("_shell")
def test_the_shell_completes_commands_words_and_names(monkeypatch: pytest.MonkeyPatch) -> None:
    assert completed(monkeypatch, "pre") == ["predict"]
    assert completed(monkeypatch, "predict", "zoo:resnet5") == ["zoo:resnet50"]
    assert completed(monkeypatch, "predict", "llama-3.1-8") == ["llama-3.1-8b"]
    assert "transformers:bert" in completed(monkeypatch, "predict", "transformers:ber")
    assert completed(monkeypatch, "predict", NETWORK, "--phase", "dec") == ["decode"]
    assert completed(monkeypatch, "predict", NETWORK, "--device", "nvidia-h100-s") == [
        "nvidia-h100-sxm5-80gb"
    ]
    assert "amd-epyc-2c" in completed(monkeypatch, "compare", NETWORK, "--predictor", "amd")
    assert completed(monkeypatch, "sweep", NETWORK, "--device", "cpu,nvidia-l40") == [
        *("cpu,nvidia-l40", "cpu,nvidia-l40s")
    ]
    assert completed(monkeypatch, "collect-data", "--phase", "forward,opt") == ["forward,optimizer"]
    assert completed(monkeypatch, "profile", NETWORK, "--device", "c") == [*known_names.HERE]
    assert completed(monkeypatch, "predict", NETWORK, "--predictor", "nvidia@nvidia-t") == [
        *("nvidia@nvidia-t4", "nvidia@nvidia-titan-rtx")
    ]


# ---- doctor ----


def test_the_doctor_finds_a_sound_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    told = json.loads(done("doctor", "--json"))
    findings = {finding["what"]: finding for finding in told["findings"]}
    assert told["neuralpower_version"] == __version__
    assert findings["prediction"]["ok"] is True and findings["predictors"]["ok"] is True
    assert "ok" in done("doctor").splitlines()[0]
    monkeypatch.setattr("neuralpower.cli.doctor.FLOP", 1)
    ended = run("doctor")
    assert ended.code == 1 and "FAILS" in ended.out


def test_the_doctor_names_the_package_of_a_missing_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neuralpower.cli.doctor.OPTIONAL", {"not_there_at_all": ("some-package", "a use")})
    assert "a use: pip install some-package" in done("doctor")
