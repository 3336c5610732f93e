"""The gauge of the sanity test: what each outcome is worth, and that nothing ends the watch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bookie_pod.admin.sanity import Sanity, SanityWatch
from bookie_protocol.errors import StorageFault
from tests.support.http_answers import ask
from tests.support.live_bookie import live_bookie


class Outcomes:
    """Outcomes in order: a verdict, an error, or None for a test that never ends."""

    def __init__(self, *outcomes: bool | Exception | None) -> None:
        self.outcomes = list(outcomes)
        self.begun = 0

    async def __call__(self) -> bool:
        self.begun += 1
        outcome = self.outcomes.pop(0)
        if outcome is None:
            await asyncio.Event().wait()
        if isinstance(outcome, Exception):
            raise outcome
        assert outcome is not None
        return outcome


@asynccontextmanager
async def running(watch: SanityWatch) -> AsyncIterator[None]:
    task = asyncio.create_task(watch.run())
    try:
        yield
        assert not task.done()
    finally:
        task.cancel()


async def until(condition: object) -> None:
    async with asyncio.timeout(10):
        while not condition():  # type: ignore[operator]  # noqa: ASYNC110
            await asyncio.sleep(0.001)


@pytest.mark.parametrize(
    ("outcome", "worth"),
    [
        (True, Sanity.PASSED),
        (False, Sanity.FAILED),
        (StorageFault("no"), Sanity.FAILED),
        (RuntimeError("a bug"), Sanity.FAILED),
        (None, Sanity.FAILED),
    ],
)
async def test_what_an_outcome_is_worth(outcome: bool | Exception | None, worth: Sanity) -> None:
    watch = SanityWatch(Outcomes(outcome), lambda: False, timeout_s=0.02)
    assert watch.value == -1
    async with running(watch):
        await until(lambda: watch.value is not Sanity.UNKNOWN)
        assert watch.value is worth


async def test_a_read_only_bookie_is_sane_and_left_alone() -> None:
    outcomes = Outcomes()
    watch = SanityWatch(outcomes, lambda: True)
    async with running(watch):
        await until(lambda: watch.value is Sanity.PASSED)
    assert outcomes.begun == 0


async def test_it_goes_on_after_a_failure() -> None:
    outcomes = Outcomes(False, RuntimeError("a bug"), True)
    watch = SanityWatch(outcomes, lambda: outcomes.begun == 3, interval_s=0.001)
    async with running(watch):
        await until(lambda: outcomes.begun == 3 and watch.value is Sanity.PASSED)


@pytest.mark.parametrize(("switch", "told"), [("true", ["bookie_SERVER_SANITY 1"]), ("false", [])])
async def test_of_a_live_bookie(tmp_path: Path, switch: str, told: list[str]) -> None:
    async with live_bookie(tmp_path, {"sanityCheckMetricsEnabled": switch}) as bookie, asyncio.timeout(30):
        while True:
            metrics = (await ask(bookie.config.http.server_port, "/metrics")).body
            found = [line for line in metrics.splitlines() if line.startswith("bookie_SERVER_SANITY")]
            if found == told:
                break
            assert found == ["bookie_SERVER_SANITY -1"]
            await asyncio.sleep(0.02)
