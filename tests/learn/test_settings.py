"""Power limits and clocks as people write them."""

from __future__ import annotations

import re

import pytest

from neuralpower.devices.spec import find_spec
from neuralpower.errors import InputError
from neuralpower.learn.settings import all_set, set_to
from neuralpower.learn.unmeasured.any_device import roofline_of
from neuralpower.learn.watts import Setting

A100 = roofline_of(find_spec("nvidia-a100-pcie-40gb"))  # 250 W, 1410 MHz


@pytest.mark.parametrize(
    ("limit", "clock", "setting"),
    [
        ("200W", None, Setting(200.0, 1.0)),
        ("80%", None, Setting(200.0, 1.0)),
        (None, "705 MHz", Setting(None, 0.5)),
        ("200 w", "0.705GHz", Setting(200.0, 0.5)),
    ],
)
def test_a_setting_is_read(limit: str | None, clock: str | None, setting: Setting) -> None:
    assert set_to(A100, limit, clock).setting == setting


def test_nothing_asked_changes_nothing() -> None:
    assert set_to(A100) is A100


def test_a_range_of_limits_has_points_from_end_to_end() -> None:
    limits = [one.setting.limit_w for one in all_set(A100, "60%..100%") if one.setting is not None]
    assert limits[0] == 150 and limits[-1] == 250 and len(limits) == 9


def test_lists_of_limits_and_clocks_are_combined() -> None:
    assert len(all_set(A100, "150W,200W", "900MHz,1200MHz,1410MHz")) == 6


@pytest.mark.parametrize(
    ("limit", "clock", "text"),
    [
        ("0W", None, "power limit '0W': write watts or a share"),
        ("300", None, "power limit '300': write watts or a share"),
        (300, None, "power limit '300': write watts or a share"),
        ("300W", None, "power limit 300W: nvidia-a100-pcie-40gb takes 75W to 250W"),
        ("40W", None, "takes 75W to 250W"),
        ("100%..60%", None, "the end must be above the start"),
        ("60%..100%", None, "--power-limit 60%..100%: one is predicted at a time"),
        (None, "990MHz,1410MHz", "neuralpower sweep compares several"),
        (None, "1410", "clock '1410': write a number with its unit"),
        (None, "1000MHz", "in steps of 15 MHz, 990MHz and 1005MHz nearest"),
        (None, "1500MHz", "1395MHz and 1410MHz nearest"),
    ],
)
def test_an_impossible_setting_is_refused(limit: object, clock: str | None, text: str) -> None:
    with pytest.raises(InputError, match=text):
        set_to(A100, limit, clock)


def test_a_limit_that_no_kernel_keeps_at_the_clock_is_refused() -> None:
    text = "80W and clock 1410MHz contradict: no kernel at full pace draws less than .* leave one"
    with pytest.raises(InputError, match=text) as told:
        set_to(A100, "80W", "1410MHz")
    named = re.search(r"--clock of (\w+) at most", str(told.value))
    assert named is not None and set_to(A100, "80W", named.group(1)).setting is not None
    assert set_to(A100, "240W", "1410MHz").setting == Setting(240.0, 1.0)


def test_a_device_without_a_limit_has_no_setting() -> None:
    with pytest.raises(InputError, match="no power limit is known for"):
        set_to(roofline_of(find_spec("apple-m1")), "20W")
