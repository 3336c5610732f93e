"""How long a recovery takes, ours beside the Java client's: `python -m benchmarks.recovery [--quick]`.

Three bookies of ours (E = Qw = 3, Qa = 2) and ledgers whose writer died with every append acknowledged. What differs is
how many of their last entries carry the same last add confirmed: so many a recovery has to find and to store again,
because nobody but the writer knew that they are confirmed. The two clients take turns, each with ledgers of its own, on
the same bookies; each round has fresh ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

import click
import psutil
import uvloop

from benchmarks.clients import drive_ours
from benchmarks.drivers import DriverError
from benchmarks.environment import Environment, drive
from benchmarks.python_client import PASSWORD
from benchmarks.samples import JAVA, OURS, Samples
from benchmarks.session import DEFAULT_OUT, Session
from bookie_client import Client, ClientOptions
from tests.support.bookie_process import BookieProcess

BOOKIES: Final = 3
_KNOWN: Final = 100
"""Entries in front of those that have to be recovered."""
_TUNED_BATCH: Final = 256
"""`recoveryReadBatchSize` of a tuned Java client; as many as `recovery_window_entries` of ours."""
_SETTLE_S: Final = 2.0
_FEWEST_FOR_P99: Final = 100


@dataclass(frozen=True)
class Case:
    """Ledgers that are alike. `unknown`: entries behind the highest LAC that bookies can tell; one at least."""

    unknown: int
    at_once: int
    ledgers: int
    warm_ups: int
    """So many more are recovered first."""
    tuned_java: bool = False
    """Measure the Java client a second time, with large batches."""

    @property
    def name(self) -> str:
        behind = "1 entry" if self.unknown == 1 else f"{self.unknown:,} entries"
        return f"{behind} behind the LAC, {'one after the other' if self.at_once == 1 else f'{self.at_once} at a time'}"


FULL: Final = (
    Case(1, 1, ledgers=200, warm_ups=200),
    Case(1, 16, ledgers=200, warm_ups=200),
    Case(1000, 1, ledgers=20, warm_ups=5, tuned_java=True),
    Case(10_000, 1, ledgers=4, warm_ups=1, tuned_java=True),
)
QUICK: Final = (
    Case(1, 1, ledgers=20, warm_ups=20),
    Case(1, 16, ledgers=40, warm_ups=20),
    Case(1000, 1, ledgers=3, warm_ups=1, tuned_java=True),
)


class RecoveryStages:
    """The measurements of one round."""

    def __init__(
        self, environment: Environment, bookies: Sequence[BookieProcess], size: int, samples: Samples, session: Session
    ) -> None:
        self._environment = environment
        self._bookies = bookies
        self._payload = Random(size).randbytes(size)
        self._samples = samples
        self._session = session

    async def run(self, case: Case) -> None:
        """Ours, then the stock Java client, then the tuned one beside the same figures of ours. Raises
        `DriverError`."""
        ours = await self._recover(OURS, case, 1)
        self._note(OURS, case, case.name, ours)
        self._note(JAVA, case, case.name, await self._recover(JAVA, case, 1))
        if case.tuned_java:
            name = f"{case.name}, Java reads {_TUNED_BATCH} at a time"
            self._note(OURS, case, name, ours)
            self._note(JAVA, case, name, await self._recover(JAVA, case, _TUNED_BATCH))

    async def first(self) -> None:
        """What the first recovery of a process takes, with its connections and all that is loaded or compiled then."""
        case = Case(1, 1, ledgers=1, warm_ups=1)
        for kind in (OURS, JAVA):
            found = await self._recover(kind, case, 1)
            self._samples.add(kind, "first recovery of a process", "ms", "less", found["first_ms"])

    async def _recover(self, kind: str, case: Case, batch: int) -> dict[str, Any]:
        """What the driver says, and the CPU time of all bookies in ms a recovery, warm-ups included."""
        count = case.warm_ups + case.ledgers
        file = self._environment.directory / f"recover-{kind}"
        ids = await self._crashed(case.unknown, count)
        last = _KNOWN + case.unknown - 1
        file.write_text("".join(f"{ledger_id} {last} {len(self._payload)}\n" for ledger_id in ids))
        arguments = ["recover", "--protocol", "v3", "--metadata", self._environment.metadata_uri]
        arguments += ["--ledger-file", str(file), "--window", str(case.at_once)]
        arguments += ["--warmup-ledgers", str(case.warm_ups)]
        before = self._cpu_seconds()
        if kind == JAVA:
            arguments += ["--recovery-read-batch", str(batch)]
            found = await asyncio.to_thread(drive, self._environment.class_path, *arguments)
        else:
            found = await asyncio.to_thread(drive_ours, *arguments)
        found["bookies_cpu_ms"] = (self._cpu_seconds() - before) * 1000 / count
        return found

    async def _crashed(self, unknown: int, count: int) -> list[int]:
        """Ledgers whose writer is gone. Each has `_KNOWN` entries, and `unknown` more that left in one turn of the
        loop, so that all of them name the same LAC. Raises `RuntimeError` if bookies can tell another one."""
        options = ClientOptions(write_window_entries=unknown + _KNOWN, write_window_bytes=1 << 30)
        ids = []
        async with Client(self._environment.metadata_uri, options) as client:
            for _ in range(count):
                ledger = await client.create(ensemble=BOOKIES, write_quorum=BOOKIES, ack_quorum=2, password=PASSWORD)
                await ledger.append_many([self._payload] * _KNOWN)
                sent = [await ledger.submit(self._payload) for _ in range(unknown)]
                await asyncio.gather(*sent)
                ids.append(ledger.ledger_id)
        await asyncio.sleep(_SETTLE_S)
        async with Client(self._environment.metadata_uri) as client:
            for ledger_id in (ids[0], ids[-1]):
                reader = await client.open(ledger_id, password=PASSWORD)
                if (lac := await reader.read_last_add_confirmed()) != _KNOWN - 1:
                    raise RuntimeError(f"bookies know {lac} as the LAC of ledger {ledger_id}, not {_KNOWN - 1}")
        return ids

    def _cpu_seconds(self) -> float:
        """Of all bookies so far."""
        return sum(sum(psutil.Process(bookie.pid).cpu_times()[:2]) for bookie in self._bookies)

    def _note(self, kind: str, case: Case, name: str, found: dict[str, Any]) -> None:
        client_ms = found["client_cpu_us_per_entry"] / 1000
        figures = [("p50", found["p50_ms"])]
        figures += [("p99", found["p99_ms"])] if case.ledgers >= _FEWEST_FOR_P99 else [("slowest", found["max_ms"])]
        figures += [("CPU of the client", client_ms), ("CPU of the bookies", found["bookies_cpu_ms"])]
        for label, value in figures:
            self._samples.add(kind, f"{name}: {label}", "ms", "less", value)
        if case.at_once > 1:
            self._samples.add(kind, f"{name}: recoveries", "per second", "more", found["entries_per_second"])
        told = ", ".join(f"{label} {value:.1f} ms" for label, value in figures)
        self._session.log(f"  {kind:4} {name}: {told}")


async def measure(
    cases: Sequence[Case], rounds: int, size: int, parent: Path | None, samples: Samples, session: Session
) -> None:
    """All cases, round after round; what fails leaves a line, and those after it still run."""
    with Environment(parent) as environment:
        for _ in range(rounds):
            bookies = [environment.bookie(OURS, {"gcWaitTime": "3600000"}) for _ in range(BOOKIES)]
            await asyncio.gather(*(asyncio.to_thread(bookie.start) for bookie in bookies))
            stages = RecoveryStages(environment, bookies, size, samples, session)
            for name, stage in [("first", stages.first()), *((case.name, stages.run(case)) for case in cases)]:
                try:
                    await stage
                except (DriverError, RuntimeError, TimeoutError) as error:
                    samples.failures.append(f"{name}: {str(error)[-800:]}")
            for bookie in bookies:
                await asyncio.to_thread(bookie.stop)
                environment.discard(bookie)


@click.command()
@click.option("--quick", is_flag=True, help="One round with few ledgers, to see that it works.")
@click.option("--rounds", type=click.IntRange(1, 20), default=3, show_default=True)
@click.option("--size", type=click.IntRange(0, 1_000_000), default=1024, show_default=True, help="Bytes of an entry.")
@click.option("--unknown", type=click.IntRange(1, 100_000), multiple=True, help="Only with so many entries to recover.")
@click.option("--dir", "parent", type=click.Path(path_type=Path), help="Parent of the bookies' directories.")
@click.option("--out", type=click.Path(path_type=Path), default=DEFAULT_OUT, show_default=True)
def main(quick: bool, rounds: int, size: int, unknown: tuple[int, ...], parent: Path | None, out: Path) -> None:
    """Compares recoveries by the two clients on three bookies of ours."""
    session, samples = Session("recovery"), Samples()
    cases = [case for case in (QUICK if quick else FULL) if not unknown or case.unknown in unknown]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(measure(cases, 1 if quick else rounds, size, parent, samples, session))
    session.report(samples, out)


if __name__ == "__main__":
    main()
