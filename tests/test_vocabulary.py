"""The check of words finds a bad phrase in each kind of place, and leaves a good one alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.vocabulary import LIST, findings, main, phrases

LISTED = phrases(LIST.read_text())
LONG = "one two three four five six seven eight nine ten " * 2 + "eleven"
BAD = {
    "docstring.py": 'def f():\n    """Sizes that the predictor\n    was learnt on."""\n',
    "message.py": "def f(n):\n    raise ValueError(f'{n} rows are left ' 'out here')\n",
    "value.py": "HELP = 'The batch size that is asked for.'\n",
    "comment.py": "# Rows of this kind are\n# taken as products.\n",
    "end.py": "x = 1  # what nothing beats\n",
    "page.md": "# Title\n\n- rows that were\n  learnt\n",
    "page.jinja": "<p>Of all rows, {{ n }} count.</p>\n",
    "value.j2": '<p>\n{{ "learnt from" ~ n }}</p>\n',
    "page.html": "<p>The <b>rest</b> of them: the rest</p>\n",
    "commands.txt": "fit  fit  Predict  Say which one of its own.\n",
    "warning.py": "import sys\nprint('warning: no meter', file=sys.stderr)\n",
    "long.py": f"import warnings\nwarnings.warn('{LONG}')\n",
    "long_f.py": f"def f(x, InputError):\n    raise InputError(f'{{x}}: short. {LONG}')\n",
}
GOOD = {
    "docstring.py": 'def f():\n    """Sizes that the predictor is trained on: `learn`, scikit-learn."""\n',
    "names.py": "KEYS = 'learnt', 'told'\nlearnt = KEYS\n",
    "message.py": "def f(n):\n    raise ValueError(f'{n} rows skipped: 10 needed. ' 'Fix: collect more.')\n",
    "panel.py": "print('Learn', 'Warning: no meter')\n",
    "long.py": f"import warnings\nwarnings.warn('{LONG[:90]}. {LONG[:90]}')\nTABLE = '{LONG}'\n",
    "page.md": "Trained rows.\n\n```text\nlearnt\n```\n\n`--learnt` and [models](of-learnt.md).\n",
    "page.jinja": "{# learnt #}<p class='the rest'>{{ learnt }}</p>\n",
    "table.csv": "learnt rows\n",
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_sentence_is_found(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(BAD[name])
    assert list(findings(tmp_path / name, LISTED))


@pytest.mark.parametrize("name", GOOD)
def test_a_good_sentence_passes(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(GOOD[name])
    assert not list(findings(tmp_path / name, LISTED))


def test_a_finding_names_file_line_phrase_and_advice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "docs" / "page.md"
    page.parent.mkdir()
    page.write_text("Title\n\nRows that were\nlearnt.\n")
    assert main([str(tmp_path)]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"{page}:4: 'learnt': write train, trained, fit (")


def test_good_files_end_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, text in GOOD.items():
        (tmp_path / name).write_text(text)
    assert main([str(tmp_path)]) == 0
    assert not capsys.readouterr().out


def test_every_phrase_says_what_to_write_and_why() -> None:
    assert all(phrase.instead and phrase.reason for phrase in LISTED)
