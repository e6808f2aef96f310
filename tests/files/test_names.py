"""Names of strangers: layers, devices, files and candidates attack no terminal, page or spreadsheet."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest

from neuralpower.cli import main
from neuralpower.files import csv_files, terminal
from neuralpower.report.grid import grid
from neuralpower.report.page import Page, Section, Table, write_html, write_markdown

CLEAR = "\x1b[2J\x1b]0;owned\x07"  # empties a terminal, and gives it another title
REVERSED = "\u202egnp_exe\u2066"
UNSAFE = (
    [*map(chr, range(9)), *map(chr, range(11, 32)), *map(chr, range(0x7F, 0xA0))]
    + list("\u061c\u200b\u200c\u200d\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e")
    + list("\u2060\u2066\u2067\u2068\u2069")
    + ["\ufeff", "\ud800", "\udfff", "\U000e0041"]
)
NETWORK = """import sys
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleDict({names!r})
    def forward(self, x):
        print({said!r})
        for part in self.parts.values():
            x = part(x)
        return x
def net():
    return Net()
"""


def network(folder: Path, *names: str, said: str = "") -> str:
    """MODEL of layers with these names; its forward pass prints what is said."""
    text = NETWORK.replace("{said!r}", repr(said))
    parts = "{" + ", ".join(f"{name!r}: nn.Linear(4, 4)" for name in names) + "}"
    (folder / "net.py").write_text(text.replace("{names!r}", parts), encoding="utf-8")
    return f"{folder / 'net.py'}:net"


def neuralpower(*arguments: str) -> int:
    """Exit code of the program, run here."""
    sys.argv = ["neuralpower", *arguments]
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def predicted(model: str, *options: str) -> int:
    """Exit code of a prediction for the input [1, 4]."""
    return neuralpower(
        "predict", model, "--input-shape", "4", "--predictor", "amd-epyc-2c", "--by", "layer", *options
    )


def safe(text: str) -> bool:
    """Whether a terminal only prints it."""
    return not any(letter in text for letter in UNSAFE)


# ---- the terminal ----


@pytest.mark.parametrize("letter", UNSAFE, ids=[f"U+{ord(letter):04X}" for letter in UNSAFE])
def test_what_a_terminal_obeys_or_hides_is_made_visible(letter: str) -> None:
    written = terminal.visible(f"a{letter}b")
    assert written.isascii() and written.isprintable()
    assert written[0] == "a" and written[-1] == "b" and "\\" in written
    assert terminal.visible_lines(f"a{letter}b") == written


def test_escapes_are_those_of_python() -> None:
    assert (
        terminal.visible("\x1b[31m \x85 \u202e \U000e0041 \n\t\r")
        == r"\x1b[31m \x85 \u202e \U000e0041 \n\t\r"
    )
    assert terminal.visible_lines("two\nlines,\tlaid out") == "two\nlines,\tlaid out"
    assert terminal.visible("Größe 3×3, 模型, مرحبا, 👍") == "Größe 3×3, 模型, مرحبا, 👍"


def test_layers_move_no_cursor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = network(tmp_path, f"a{CLEAR}", f"b{REVERSED}", "c\nlatency 1 ns", said=f"{CLEAR}forward")
    assert predicted(model) == 0
    out, err = capsys.readouterr()
    assert safe(out) and safe(err)
    assert r"parts.a\x1b[2J\x1b]0;owned\x07" in out
    assert r"parts.b\u202egnp_exe\u2066" in out
    assert r"parts.c\nlatency 1 ns" in out
    assert sum(line.startswith("latency") for line in out.splitlines()) == 1
    widths = {line.index("linear") for line in out.splitlines() if "parts." in line}
    assert len(widths) == 1  # columns stay in line


def test_what_a_network_prints_is_made_visible(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "net.py").write_text(
        "from torch import nn\nprint('\\x1b[2J', 'hi')\ndef net(): return nn.Linear(4, 4)\n"
    )
    assert predicted(f"{tmp_path / 'net.py'}:net") == 0
    assert r"\x1b[2J hi" in capsys.readouterr().err


def test_json_stays_exact(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = f"a{CLEAR}", f"b{REVERSED}", "=cmd|' /C calc'!A0"
    assert predicted(network(tmp_path, *names), "--json") == 0
    out = capsys.readouterr().out
    assert safe(out)
    assert {layer["path"] for layer in json.loads(out)["layers"]} == {f"parts.{name}" for name in names}


def test_messages_move_no_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    for model in (f"zoo:{CLEAR}", f"{REVERSED}.py:net", f"{CLEAR}", "\ud800.json", f"zoo:alexnet?{CLEAR}=1"):
        assert neuralpower("predict", model, "--predictor", "amd-epyc-2c") == 2
        err = capsys.readouterr().err
        assert safe(err), model
        assert err.startswith("error: ") and err.count("\n") == 1
    assert neuralpower("predict", "zoo:alexnet", f"--{CLEAR}") == 2
    assert safe(capsys.readouterr().err)


def test_candidates_move_no_cursor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    layers = [{"kind": "linear", "rows": 1, "in_features": 4, "out_features": 4, "bias": True}]
    lines = [
        {"name": f"{CLEAR}\n1     the best", "layers": layers},
        {"name": "bad", "model": f"zoo:{CLEAR}\u2028x"},
        {"name": "worse", "layers": [{**layers[0], f"{CLEAR}": 1}]},
    ]
    (tmp_path / "list.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert neuralpower("score", str(tmp_path / "list.jsonl"), "--predictor", "amd-epyc-2c") == 0
    out, err = capsys.readouterr()
    assert safe(out) and safe(err)
    assert len(out.splitlines()) == 7  # what it is and a free line, the header, its rule, three candidates
    assert len(err.splitlines()) == 2


def test_devices_of_predictors_move_no_cursor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from dataclasses import replace

    import neuralpower as np_
    from neuralpower.learn.files.predictor_json import save
    from neuralpower.learn.predictor import Predictor

    given: Predictor = np_.load("amd-epyc-2c").predictor
    save(replace(given, device=f"EPYC{CLEAR}\nlatency 1 ns", name="evil"), tmp_path / "evil.json")
    assert neuralpower("predict", "zoo:deep_mnist", "--predictor", str(tmp_path / "evil.json")) == 2
    out, err = capsys.readouterr()
    assert safe(err) and not out
    assert r'device is "EPYC\u001b[2J' in err and len(err.splitlines()) == 1


def test_an_error_of_the_program_itself_is_visible_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ZeroDivisionError), terminal.visible_streams():
        raise ZeroDivisionError(CLEAR)
    print(CLEAR, file=sys.stderr)  # as the interpreter prints the traceback
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, getattr(sys, name).rich_proxied_file)
    assert safe(capsys.readouterr().err)


def test_rich_draws_past_it() -> None:
    from rich.console import Console

    drawn = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", terminal.Visible(drawn))
        Console(force_terminal=True, color_system="standard", no_color=False).print("[red]red[/red]")
        print("\x1b[31mred")
    assert "\x1b[31mred\x1b[0m" in drawn.getvalue()
    assert r"\x1b[31mred" in drawn.getvalue()


def test_a_grid_is_in_line_and_of_one_line_a_row() -> None:
    lines = grid(["name", "s"], [["a\nb", "1"], ["\x1b", "22"]]).splitlines()
    assert lines == ["name   s", "----  --", r"a\nb   1", r"\x1b  22"]


# ---- spreadsheets ----


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        ("=cmd|' /C calc'!A0", "'=cmd|' /C calc'!A0"),
        ("+cmd", "'+cmd"),
        ("-2+3+cmd", "'-2+3+cmd"),
        ("@SUM(A1)", "'@SUM(A1)"),
        (" =1+1", "' =1+1"),
        ("\t=1+1", "'\t=1+1"),
        ("\tx", "'\tx"),
        ("\rx", r"'\rx"),
        ("\uff1d1+1", "'\uff1d1+1"),
        ("-1.5", "-1.5"),
        ("+3e-5", "+3e-5"),
        ("-inf", "-inf"),
        ("-", "-"),
        ("", ""),
        ("a=b", "a=b"),
        ("layer.0", "layer.0"),
        (-1.5, "-1.5"),
        (None, ""),
        (True, "True"),
        (f"x{CLEAR}", r"x\x1b[2J\x1b]0;owned\x07"),
    ],
)
def test_a_text_is_no_formula(value: object, cell: str) -> None:
    (row,) = csv.reader(io.StringIO(csv_files.csv_text([[value, "end"]]), newline=""))
    assert row == [cell, "end"]


def test_every_csv_is_written_in_one_place() -> None:
    """A file that writes CSV by itself would write formulas."""
    package = Path(csv_files.__file__).parents[1]
    own = [
        file.name
        for file in package.rglob("*.py")
        if any(
            word in file.read_text(encoding="utf-8")
            for word in ("csv.writer", "csv.DictWriter", ".to_csv(", "to_markdown(")
        )
    ]
    assert sorted(own) == [
        "csv_files.py",
        "profile.py",
        "result.py",
    ]  # the last two: NetworkProfile's own methods


def test_layers_are_no_formulas_in_a_csv(tmp_path: Path) -> None:
    model = network(tmp_path, "=cmd|' /C calc'!A0", "b")
    assert predicted(model, "--csv", str(tmp_path / "layers.csv")) == 0
    read = pd.read_csv(tmp_path / "layers.csv")
    assert set(read["path"]) == {"parts.=cmd|' /C calc'!A0", "parts.b"}  # which begins with a letter
    assert (read["runtime_s"] > 0).all() and read["count"].dtype.kind == "i"


def test_modules_at_the_top_are_no_formulas(tmp_path: Path) -> None:
    import torch
    from torch import nn

    from neuralpower import profile

    model = nn.Sequential()
    model.add_module("=cmd|' /C calc'!A0", nn.Linear(4, 4))
    text = profile(model, torch.zeros(1, 4), runtime=False).to_csv(tmp_path / "rows.csv")
    assert "'=cmd|' /C calc'!A0" in text
    read = pd.read_csv(tmp_path / "rows.csv")
    assert read["path"][0] == "'=cmd|' /C calc'!A0"
    assert read["flops"].sum() == 2 * 4 * 4 * 1


# ---- pages ----

HOSTILE = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "[x](javascript:alert(1))",
    "![x](http://example.org/track.png)",
    "<javascript:alert(1)>",
    "&lt;script&gt;",
    "a | b | c",
    "`<b>`",
    "\\`<b>`",
    "``<b>``",
    "`a`<b>`c`",
    "two\nlines\n\n# title",
    "\\[x](javascript:alert(1))",
    "\\<b>",
    "\\|x",
    "[x]: javascript:alert(1)",
)


def rendered(text: str) -> tuple[set[str], list[str]]:
    """(tags, addresses) of what a viewer makes of Markdown: the parts that decide, by CommonMark's rules.

    Code spans first, then escapes by a backslash, then raw HTML, autolinks and links.
    """
    left = re.sub(r"(?<!\\)(`+)(?!`)(.+?)(?<!`)\1(?!`)", "", text)
    left = re.sub(r"\\[!-/:-@\[-`{-~]", "", left)
    return set(re.findall(r"<[a-zA-Z/!][^>]*>", left)), re.findall(r"\]\(([^)]*)\)|\]:", left)


@pytest.mark.parametrize("text", HOSTILE)
def test_markdown_of_names_is_letters(text: str) -> None:
    for written in (
        csv_files.inline(text),
        csv_files.escaped(text),
        csv_files.inline(f"`{text}`"),
        csv_files.inline(f"a `{text}` b"),
    ):
        assert "\n" not in written
        assert rendered(written) == (set(), [])
    (row,) = csv_files.table(["x", "y"], [[text, "end"]])[2:]
    assert len(re.findall(r"(?<!\\)\|", row)) == 3


def test_markdown_keeps_its_own_markup() -> None:
    assert csv_files.inline("run `neuralpower lab` at 5 < 6") == "run `neuralpower lab` at 5 &lt; 6"
    assert csv_files.table(["a", "b"], [["x|y", "1"]], [False, True]) == [
        "| a | b |",
        "| --- | ---: |",
        r"| x\|y | 1 |",
    ]


class Tags(HTMLParser):
    """The tags, attributes and addresses of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Called by the parser."""
        self.tags.add(tag)
        self.attributes += attrs


def test_pages_of_names_hold_no_markup_of_theirs(tmp_path: Path) -> None:
    parts = tuple(
        Table(text, (text, "n"), ((text, 1), (f"{CLEAR}{REVERSED}", 2)), note=text) for text in HOSTILE
    )
    sections = tuple(
        Section(text, (text, f"- {text}"), (part,)) for text, part in zip(HOSTILE, parts, strict=True)
    )
    page = Page("; ".join(HOSTILE), HOSTILE[0], sections)
    write_html(page, tmp_path / "page.html")
    write_markdown(page, tmp_path / "page.md", tmp_path / "figures")
    html = (tmp_path / "page.html").read_text(encoding="utf-8")
    found = Tags()
    found.feed(html)
    assert not found.tags & {"script", "img", "b", "javascript:alert(1)"}
    assert not [name for name, _ in found.attributes if name.startswith("on")]
    links = {
        value for name, value in found.attributes if name == "href" and value and not value.startswith("#")
    }
    assert links == {"data:,", "http://example.org/track.png"}  # shown as it stands, nothing is fetched
    written = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert all(rendered(line) == (set(), []) for line in written.splitlines())
    assert safe(html) and safe(written)
    csv_files.write_csv(tmp_path / "t.csv", [("x",), ("=1+1",)])
    assert (tmp_path / "t.csv").read_text() == "x\n'=1+1\n"


def test_a_card_of_a_predictor_is_letters(tmp_path: Path) -> None:
    from dataclasses import replace

    import neuralpower as np_
    from neuralpower.report.cards import predictor_card

    given = np_.load("amd-epyc-2c").predictor
    for text in HOSTILE:
        about = {
            **given.dataset,
            "name": text,
            "trained": text,
            "source": text,
            "sessions": [{"torch": text}],
        }
        card = predictor_card(replace(given, name=text, device=text, dataset=about, learner=text))
        assert all(rendered(line) == (set(), []) for line in card.splitlines()), text


def test_a_card_of_a_dataset_is_letters(tmp_path: Path) -> None:
    from neuralpower.data.dataset import Dataset
    from neuralpower.report.cards import dataset_card

    for text in HOSTILE:
        rows = pd.DataFrame(
            [{"runtime_s": 1e-3, "status": text, "dtype": text, "power_w": None, "power_reason": text}]
        )
        rows = pd.concat([rows, rows.assign(status="ok")])
        meta = {
            "device": text,
            "hardware": {"cores": text},
            "power_reason": text,
            "sessions": [{"utc": text}],
        }
        card = dataset_card(Dataset(tmp_path, meta, {"linear": rows}))
        assert all(rendered(line) == (set(), []) for line in card.splitlines()), text


def test_the_markdown_of_a_profile_is_letters(tmp_path: Path) -> None:
    import torch
    from torch import nn

    from neuralpower import profile

    model = nn.Sequential()
    model.add_module("<script>alert(1)</script> | [x](javascript:alert(1))", nn.Linear(4, 4))
    text = profile(model, torch.zeros(1, 4), runtime=False).to_markdown()
    assert all(rendered(line) == (set(), []) for line in text.splitlines())
    assert r"&lt;script&gt;alert(1)&lt;/script&gt; \| \[x\](javascript:alert(1))" in text
