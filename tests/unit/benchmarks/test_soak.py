"""Whether the judge of `make soak` sees a leak, and takes warm caches for none."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.soak import ALLOWED, ALLOWED_OBJECTS, Samples, draw, report

COUNT = 120


def sampled(**levels: list[float]) -> Samples:
    samples = Samples(seconds=[5.0 * number for number in range(COUNT)])
    for name in ALLOWED:
        samples.levels[name] = levels.get(name.split()[-1], [100.0] * COUNT)
    samples.objects = [{"dict": 10_000 + 50 * (number % 7), "list": 5000} for number in range(COUNT)]
    return samples


def warmed(most: float) -> list[float]:
    """It rises for a third of the time, and then goes up and down a little."""
    return [min(most, 60 + number * most / 40) + number % 3 for number in range(COUNT)]


def test_what_fills_at_first_is_no_leak(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    samples = sampled(MB=warmed(200), descriptors=[50.0 + number % 5 for number in range(COUNT)])
    assert report(samples, {"ledgers": 5})
    assert "leaks" not in capsys.readouterr().out
    draw(samples, tmp_path / "out" / "soak.png")
    assert (tmp_path / "out" / "soak.png").read_bytes().startswith(b"\x89PNG\r\n")


@pytest.mark.parametrize(("name", "each"), [("MB", 0.3), ("descriptors", 0.2), ("threads", 0.1)])
def test_what_goes_on_rising_is_one(name: str, each: float, capsys: pytest.CaptureFixture[str]) -> None:
    samples = sampled(**{name: [100.0 + each * number for number in range(COUNT)]})
    assert not report(samples, {})
    assert capsys.readouterr().out.count("**leaks**") == 1


def test_a_type_that_grows_in_every_quarter_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    samples = sampled()
    for number, objects in enumerate(samples.objects):
        objects["Waiter"] = number * 50
        objects["Cached"] = min(number, COUNT // 3) * 500
    assert samples.growing_types().keys() == {"Waiter"}
    assert samples.growing_types()["Waiter"] > ALLOWED_OBJECTS
    assert not report(samples, {})
    assert "objects: Waiter" in capsys.readouterr().out
