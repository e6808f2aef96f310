"""The pages that are made of the program: what they hold, and that they follow it."""

from pathlib import Path

import pytest

import neuralpower
from docs.generate import commands, picture, python_api, tables
from docs.generate.markdown import page, table
from neuralpower import cli
from neuralpower.devices.spec import find_spec
from neuralpower.layers import KINDS

ROOT = Path(__file__).parent.parent


def test_all_commands_and_their_options_are_on_their_page() -> None:
    text = commands.commands_page()
    for name in cli.COMMANDS:
        assert f"\n## {name}\n" in text
    assert "\n### paradnn fc\n" in text
    section = text.partition("\n## predict\n")[2].partition("\n## ")[0]
    shown = [p for p in cli.command_of("predict").params if not p.hidden and p.opts[0].startswith("-")]
    assert len(shown) > 20
    assert all(f"`{parameter.opts[0]}`" in section for parameter in shown)


def test_all_public_names_are_on_the_page_of_the_python_interface() -> None:
    text = python_api.api_page()
    for name in neuralpower.__all__:
        assert name[0] == "_" or f"\n## neuralpower.{name}\n" in text
    assert "| `PredictorError` | 2 | " in text


def test_a_docstring_becomes_markdown() -> None:
    text = "Say it.\n\nArgs:\n    x: [batch], in s;\n        never 0.\n\nRaises:\n    InputError: no x.\n"
    assert "- `x`: [batch], in s;\n  never 0." in python_api.prose(text)
    assert "**Raises**\n\n- `InputError`: no x." in python_api.prose(text)


def test_a_signature_is_without_self_and_quoted_types() -> None:
    class Thing:
        def ask(self, x: "int | None" = None, way: str = "b") -> "Thing":
            return self

    assert python_api.signature(Thing.ask) == "(x: int | None = None, way: str = 'b') -> Thing"


@pytest.fixture(scope="module")
def known() -> tables.Known:
    return tables.known()


def test_how_a_device_is_known_follows_from_predictors_and_sheets(known: tables.Known) -> None:
    h100, p100 = find_spec("h100"), find_spec("nvidia-p100-pcie-16gb")
    assert known.of(h100, "bfloat16") == tables.TRAINED
    assert known.of(h100, "nvfp4") == tables.LACKING  # Hopper has no such products
    assert known.of(p100, "float32") == tables.TRAINED
    assert known.of(p100, "float8_e4m3fn") == tables.LACKING
    assert known.of(find_spec("nvidia-rtx-4090"), "bfloat16") == tables.CARRIED
    assert known.of(find_spec("amd-epyc-9654"), "float32") == tables.ROOFLINE


def test_all_devices_and_kinds_have_a_row() -> None:
    text = tables.devices_page()
    assert all(f"\n| `{spec.slug}` |" in text for spec in tables.specs())
    text = tables.kinds_page()
    assert all(f"\n| `{name}` |" in text for name in KINDS)


def test_a_cell_keeps_to_its_column() -> None:
    assert table(("a", "b"), [("x|y", "<z>\n w")]) == "| a | b |\n|---|---|\n| x\\|y | &lt;z> w |"
    assert table(("a",), []) == ""
    assert page("# A", "", "text\n") == "# A\n\ntext\n"


def test_a_picture_holds_the_command_and_loads_nothing() -> None:
    svg = picture.terminal("neuralpower predict x", "\x1b[31mred\x1b[0m\nplain")
    assert svg.startswith("<svg")
    assert "plain" in svg
    assert "red" in svg
    assert "url(http" not in svg
    assert "@font-face" not in svg


def test_made_pages_are_not_kept() -> None:
    assert not (ROOT / "docs/reference").exists()
    assert not (ROOT / "docs/predictors").exists()
