"""Settings are read by type; what is missing, ill-typed or unknown is refused by its full name."""

from collections.abc import Callable
from typing import Any

import pytest

from include.domain.errors import SpecError
from include.runtime.settings import Settings

VALUES: dict[str, Any] = {
    "learning_rate": 1e-3,
    "steps": 8,
    "whole": 4.0,
    "schedule": "linear",
    "on": True,
    "betas": [0.9, 0.95],
    "kl": {"target": 6.0},
    "none": None,
}


def _settings() -> Settings:
    return Settings(VALUES, "config")


def test_values_come_in_the_type_that_is_asked_for() -> None:
    settings = _settings()
    assert settings.number("steps") == 8.0
    assert settings.integer("whole") == 4
    assert settings.text("schedule", ("linear", "cosine")) == "linear"
    assert settings.flag("on") is True
    assert settings.numbers("betas") == [0.9, 0.95]
    assert settings.section("kl").number("target") == 6.0


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda s: s.number("absent"), "config.absent is missing"),
        (lambda s: s.number("none"), "config.none is missing"),
        (lambda s: s.number("on"), "config.on is True, expected a number"),
        (lambda s: s.integer("learning_rate"), "config.learning_rate is 0.001, expected an integer"),
        (lambda s: s.text("schedule", ("cosine",)), "config.schedule is 'linear', expected one of cosine"),
        (lambda s: s.section("kl").number("initial"), "config.kl.initial is missing"),
        (lambda s: s.positive("zero", 0), "config.zero is 0, expected an integer above 0"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_full_name(read: Callable[[Settings], Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        read(_settings())


def test_a_setting_that_nobody_reads_is_refused() -> None:
    with pytest.raises(SpecError, match="config.schedule is not a setting of this program"):
        _settings().only("learning_rate", "steps", "whole", "on", "betas", "kl", "none")


def test_a_default_stands_in_for_null_and_for_absence() -> None:
    assert _settings().number("none", 2) == 2.0
    assert _settings().texts("absent", ["a"]) == ["a"]
    assert "none" not in _settings()
