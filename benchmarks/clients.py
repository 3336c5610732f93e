"""Our client beside the Java client on the same bookies: `python -m benchmarks.clients [--quick] [--only STAGE]`.

Three bookies of ours, fresh ones for each load, so that what was written before fills no disk; the two clients in turn,
round after round. Prints ratios and writes every figure, as `benchmarks.compare` does for bookies.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click

from benchmarks.drivers import DriverError, printed_object
from benchmarks.environment import Environment, drive
from benchmarks.samples import JAVA, OURS, Samples
from benchmarks.session import DEFAULT_OUT, Session

BOOKIES = 3
_DRIVER_SECONDS = 300
_HALF = 0.5
_BULK = 100
_TAIL_RATE = 1000


@dataclass(frozen=True)
class Load:
    """One setting of an append load."""

    size: int
    ledgers: int
    write_quorum: int
    window: int
    ensemble: int | None = None  # unless it is the write quorum

    @property
    def name(self) -> str:
        ledgers = "1 ledger" if self.ledgers == 1 else f"{self.ledgers} ledgers"
        return f"{self.size} B, {ledgers}, Qw {self.write_quorum}, window {self.window}"

    def options(self) -> list[str]:
        return [
            *("--size", str(self.size), "--ledgers", str(self.ledgers), "--window", str(self.window)),
            *("--ensemble", str(self.ensemble or self.write_quorum), "--write-quorum", str(self.write_quorum)),
            *("--ack-quorum", str(self.write_quorum // 2 + 1), "--protocol", "v3"),
        ]


FULL = [
    Load(size, ledgers, quorum, window)
    for size in (1024, 128)
    for ledgers in (1, 16)
    for quorum in (1, 3)
    for window in (100, 2000)
]
STAGES = ("appends", "tails", "reads", "striped")
QUICK = [Load(1024, 1, 1, 2000), Load(1024, 1, 3, 2000), Load(128, 1, 1, 2000)]


def drive_ours(*arguments: str) -> dict[str, Any]:
    """Runs the Python driver; returns the object it printed. Raises `DriverError`."""
    return printed_object([sys.executable, "-m", "benchmarks.python_client", *arguments], arguments, _DRIVER_SECONDS)


class Comparison:
    """The measurements on one cluster."""

    def __init__(self, environment: Environment, samples: Samples, duration: int, log: Callable[[str], None]) -> None:
        self._environment = environment
        self._samples = samples
        self._time = ("--warmup", "3", "--duration", str(duration))
        self._log = log

    def run(self, kind: str, *arguments: str) -> dict[str, Any]:
        metadata = ("--metadata", self._environment.metadata_uri)
        if kind == JAVA:
            return drive(self._environment.class_path, *arguments, *metadata)
        return drive_ours(*arguments, *metadata)

    def appends(self, load: Load) -> None:
        """Both clients entry by entry, ours in bulk as well; then at half of the slower one's peak."""
        rates = []
        for kind in (OURS, JAVA):
            result = self.run(kind, "add", *load.options(), *self._time)
            rates.append(result["entries_per_second"])
            self._note(kind, f"append {load.name}", result)
            if kind == JAVA and load.window >= _BULK:
                self._note(JAVA, f"append in bulk {load.name}", result)
        if load.window >= _BULK:
            result = self.run(OURS, "add", *load.options(), *self._time, "--bulk", str(_BULK))
            self._note(OURS, f"append in bulk {load.name}", result)
        for kind in (OURS, JAVA):
            rate = str(int(min(rates) * _HALF))
            result = self.run(kind, "add", *load.options(), *self._time, "--rate", rate)
            self._samples.add(kind, f"append {load.name}, p99 at half peak", "ms", "less", result["p99_ms"])

    def reads(self, size: int) -> None:
        """A scan of one closed ledger from the bookies' memory, by ranges of 100 entries."""
        for kind in (OURS, JAVA):
            file = self._environment.directory / f"{kind}-{size}-{time.monotonic_ns()}"
            load = Load(size, 1, 1, 2000)
            self.run(kind, "add", *load.options(), "--warmup", "0", "--duration", "1", "--ledger-file", str(file))
            # The Java client reads batches in its v2 protocol only.
            protocol = ("--protocol", "v2", "--read-kind", "batch") if kind == JAVA else ("--protocol", "v3")
            read = ("read", *protocol, *self._time, "--ledger-file", str(file), "--batch", "100", "--window", "20")
            result = self.run(kind, *read)
            self._note(kind, f"batch read {size} B", result)
            # Java's payloads are views of the answer; ours are bytes of their own, and views if wanted.
            if kind == OURS:
                result = self.run(kind, *read, "--in-place")
            self._note(kind, f"batch read {size} B, payloads in place", result)

    def striped(self, size: int) -> None:
        """What striping costs our client: the same scan of two ledgers, each entry on two bookies."""
        for name, ensemble in (("E 2, Qw 2", 2), ("E 3, Qw 2", 3)):
            file = self._environment.directory / f"striped-{ensemble}-{time.monotonic_ns()}"
            load = Load(size, 1, 2, 2000, ensemble)
            self.run(OURS, "add", *load.options(), "--warmup", "0", "--duration", "1", "--ledger-file", str(file))
            result = self.run(
                *(OURS, "read", "--protocol", "v3", *self._time, "--ledger-file", str(file)),
                *("--batch", "1000", "--window", "4"),
            )
            self._note(OURS, f"scan {size} B, {name}", result)

    def tails(self, write_quorum: int) -> None:
        """From the append of an entry until a reader that follows the ledger has it, at a modest rate."""
        load = Load(1024, 1, write_quorum, 2000)
        for kind in (OURS, JAVA):
            result = self.run(kind, "tail", *load.options(), *self._time, "--rate", str(_TAIL_RATE))
            for name, key in (("p50", "p50_ms"), ("p99", "p99_ms")):
                metric = f"tail {_TAIL_RATE} entries/s, Qw {write_quorum}, {name}"
                self._log(f"  {kind:4} {metric}: {result[key]:.2f} ms")
                self._samples.add(kind, metric, "ms", "less", result[key])

    def _note(self, kind: str, name: str, result: dict[str, Any]) -> None:
        rate, cpu = result["entries_per_second"], result["client_cpu_us_per_entry"]
        self._log(f"  {kind:4} {name}: {rate:,.0f}/s, {cpu:.2f} us CPU an entry, p99 {result['p99_ms']:.1f} ms")
        self._samples.add(kind, name, "entries/s", "more", rate)
        self._samples.add(kind, f"{name}, per CPU second of the client", "entries", "more", 1e6 / cpu if cpu else 0)


@click.command()
@click.option("--quick", is_flag=True, help="Few settings, short.")
@click.option("--rounds", type=click.IntRange(1, 20), default=2, show_default=True)
@click.option("--only", type=click.Choice(STAGES), multiple=True, help="These stages alone.  [default: all]")
@click.option("--dir", "parent", type=click.Path(path_type=Path), help="Parent of the bookies' directories.")
@click.option("--out", type=click.Path(path_type=Path), default=DEFAULT_OUT, show_default=True)
def main(quick: bool, rounds: int, only: tuple[str, ...], parent: Path | None, out: Path) -> None:
    """Compares the two clients on three bookies of ours."""
    session, samples, stages = Session("clients"), Samples(), only or STAGES

    def attempt(what: str, measure: Callable[[Comparison], None]) -> None:
        try:
            with Environment(parent) as environment:
                for _ in range(BOOKIES):
                    environment.bookie(OURS).start()
                measure(Comparison(environment, samples, 3 if quick else 5, session.log))
        except (DriverError, RuntimeError, TimeoutError) as error:
            samples.failures.append(f"{what}: {str(error)[-800:]}")

    for _ in range(rounds):
        for load in (QUICK if quick else FULL) if "appends" in stages else ():
            attempt(load.name, partial(Comparison.appends, load=load))
        for quorum in (1, 3) if "tails" in stages else ():
            attempt("tail", partial(Comparison.tails, write_quorum=quorum))
        for stage in (Comparison.reads, Comparison.striped):
            for size in ((1024,) if quick else (1024, 128)) if stage.__name__ in stages else ():
                attempt(stage.__name__, partial(stage, size=size))
    session.report(samples, out)


if __name__ == "__main__":
    main()
