"""The context of a job: its arguments, Spark, the cluster, and ways to report how far it is.

A SparkSession that is there already is used: a notebook's, or the one that spark-submit configures. Else one is made:
as the arguments of spark-submit in `PYSPARK_SUBMIT_ARGS` tell, as everywhere in PySpark; without them on this
machine, without the web page and the bar that Spark draws over other output.

What is begun here is a child of this process, which gets its signals itself: with spark-submit Java is the parent.

Invariants
- Spark and the client are made when they are first asked for: a dry run that needs no Spark starts none.
- Whatever was made is closed with the context.

The driver's main thread; `progress` and `log` from any.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, TextIO, TypeVar

from bookie_protocol.shown import one_line
from pyspark_bookie.common.access import AccessOptions
from pyspark_bookie.common.errors import JAVA, PodkeeperSparkError
from pyspark_bookie.common.throttle import Throttle, share
from pyspark_bookie.jobs.framework.arguments import CommonArguments
from pyspark_bookie.jobs.framework.tasks import Outcome, TaskEnvironment, run_tasks
from pyspark_bookie.registration import use_this_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from bookie_client.blocking import BlockingClient

INTERVAL_S: Final = 2.0
_REDRAW_S: Final = 0.1
_DEFAULT_MASTER: Final = "local[*]"
_SUBMITTED: Final = ("PYSPARK_GATEWAY_PORT", "SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED")
"""Environment variables that are set if another program has started Spark."""
_JAVA_OPTIONS: Final = "-XX:TieredStopAtLevel=1"
"""A job's work is done in Python, and Java passes results on: to optimise that costs a short job more of the processors
than it brings. BookieJobs have it too."""
_ARGUMENTS: Final = "PYSPARK_SUBMIT_ARGS"
"""Environment variable with the options for starting Spark here."""
A_co = TypeVar("A_co", bound=CommonArguments, covariant=True)
T = TypeVar("T")
R = TypeVar("R")


class Progress:
    """The progress of a job, shown on standard error, from any thread.

    On a terminal it is one line that is drawn again; elsewhere it is a line at most every two seconds, so that a pod's
    log stays short. The size of a new part of the work is shown at once: its first piece may take minutes.

    Called with how much is done of how much; `close` ends the line.
    """

    def __init__(
        self, job: str, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic, quiet: bool = False
    ) -> None:
        self._job = job
        self._stream = stream if stream is not None else sys.stderr
        self._clock = clock
        self._quiet = quiet
        self._terminal = self._stream.isatty()
        self._lock = threading.Lock()
        self._began = clock()
        self._shown_at = float("-inf")
        self._part: tuple[float | None, str] | None = None
        self._last: str | None = None
        self._drawn = False

    def __call__(self, done: float, total: float | None = None, unit: str = "", note: str = "") -> None:
        """Tell how much is done. `total` None: the end is not known. `unit` "bytes" is shown in MB."""
        with self._lock:
            self._last = self._text(done, total, unit, note)
            now = self._clock()
            begins = total is not None and self._part != (total, unit)
            self._part = total, unit
            if begins or now - self._shown_at >= (_REDRAW_S if self._terminal else INTERVAL_S):
                self._shown_at = now
                self._show()

    def close(self) -> None:
        """Show what was not shown yet, and end a line that was drawn."""
        with self._lock:
            if self._last is not None:
                self._show()
            if self._drawn:
                self._write("\n")
                self._drawn = False

    def _show(self) -> None:
        text, self._last = self._last, None
        if self._terminal:
            self._write(f"\r\x1b[2K{text}")
            self._drawn = True
        else:
            self._write(f"{text}\n")

    def _write(self, text: str) -> None:
        if not self._quiet:
            self._stream.write(text)
            self._stream.flush()

    def _text(self, done: float, total: float | None, unit: str, note: str) -> str:
        elapsed = max(self._clock() - self._began, 1e-9)
        scale, label = (1e6, "MB") if unit == "bytes" else (1, unit)
        text = f"{self._job}: {done / scale:,.0f}"
        if total is not None:
            text += f" of {total / scale:,.0f}"
        text += f" {label}".rstrip()
        if total:
            text += f" ({100 * done / total:.0f} %)"
            if 0 < done < total and elapsed > INTERVAL_S:
                text += f", {(total - done) * elapsed / done:,.0f} s to go"
        return f"{text}, {note}" if note else text


def open_session(name: str, master: str | None) -> tuple[SparkSession, bool]:
    """The session, and whether it is ours to stop. `master` None: see the module."""
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        use_this_python(active)
        return active, False
    builder = SparkSession.builder.appName(name)
    submitted = any(variable in os.environ for variable in _SUBMITTED)
    decided = submitted or _ARGUMENTS in os.environ
    if master is not None or not decided:
        builder = builder.master(master or _DEFAULT_MASTER)
    if not submitted:
        _show_workers_this_python()
    if not decided:
        _check_java()
        if (master or _DEFAULT_MASTER).startswith("local["):  # no other machine has to reach the driver
            builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
        for key, value in {
            "spark.driver.extraJavaOptions": _JAVA_OPTIONS,
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.shuffle.partitions": "8",
        }.items():
            builder = builder.config(key, value)
    session = builder.getOrCreate()
    if not decided:
        session.sparkContext.setLogLevel("ERROR")
    return session, True


def _check_java() -> None:
    """Raises `PodkeeperSparkError` where there is no Java to start, of which Spark says something else."""
    home = os.environ.get("JAVA_HOME")
    if (shutil.which("java") if not home else shutil.which("java", path=os.path.join(home, "bin"))) is None:
        where = f"JAVA_HOME={home} has none" if home else "there is none in PATH"
        raise PodkeeperSparkError(JAVA, f"jobs need Java 17 or newer, and {where}: install it, or set JAVA_HOME")


def _show_workers_this_python() -> None:
    """Spark's Python workers begin with the environment of the JVM: neither with this interpreter, nor with this
    process's search path."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    root = str(Path(__file__).resolve().parents[3])
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if root not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([root, *filter(None, paths)])


def parallelism(session: SparkSession) -> int:
    """Tasks that can run at the same time, as far as Spark tells now (`spark.default.parallelism`); through Spark
    Connect, which does not tell, the number of shuffle partitions."""
    try:
        return max(1, session.sparkContext.defaultParallelism)
    except Exception:  # Spark Connect has no context, and says so by errors of several types
        return max(1, int(session.conf.get("spark.sql.shuffle.partitions") or 1))


class JobContext(Generic[A_co]):
    """Made by the command, or by a program that runs a job itself:

    with JobContext("offload", OffloadArguments(metadata=uri, target="file:///tmp/x"), spark=spark) as context:
        result = OffloadJob().run(context)
    """

    def __init__(
        self,
        name: str,
        args: A_co,
        *,
        spark: SparkSession | None = None,
        progress: Progress | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.args = args
        self.progress = progress or Progress(name)
        self._clock = clock
        self._began = clock()
        self._spark = spark
        self._ours = False

    # --- what is asked ----------------------------------------------------------------------------------------

    @property
    def dry_run(self) -> bool:
        """Return True if nothing may be changed."""
        return self.args.dry_run

    @property
    def deadline(self) -> float | None:
        """Return the time from which nothing new may begin, by `time.monotonic` (or the given clock); None: never."""
        return None if self.args.time_limit is None else self._began + self.args.time_limit

    @property
    def in_time(self) -> bool:
        """Something new may begin."""
        return self.deadline is None or self._clock() < self.deadline

    @cached_property
    def access(self) -> AccessOptions:
        """Return the access to the cluster; may be sent to tasks."""
        return self.args.access()

    # --- what is used -----------------------------------------------------------------------------------------

    @property
    def spark(self) -> SparkSession:
        """The session."""
        if self._spark is None:
            self._spark, self._ours = open_session(f"podkeeper {self.name}", self.args.master)
        return self._spark

    @property
    def concurrent(self) -> int:
        """Pieces of work at a time."""
        return self.args.max_concurrent or parallelism(self.spark)

    def client(self, access: AccessOptions | None = None) -> BlockingClient:
        """The driver's client; not to be closed. `access`: of another cluster than that of `--metadata`. Raises
        `PodkeeperSparkError`."""
        if not self.dry_run:
            self.open_spark()
        return (access or self.access).client()

    def open_spark(self) -> None:
        """Start Java now, if it has to be: a client has threads, and to fork a process with gRPC's threads may fail."""
        self.spark  # noqa: B018 - it is made when it is asked for

    def throttle(self) -> Throttle:
        """The throttle for bytes that the driver itself moves: the whole rate, by default that of one slot."""
        return Throttle(self.args.bytes_per_second(1))

    def environment(self, access: AccessOptions | None = None) -> TaskEnvironment:
        """Return what tasks need: the cluster, and the rate of each."""
        slots = self.concurrent
        return TaskEnvironment(access or self.access, share(self.args.bytes_per_second(slots), slots))

    def run_tasks(
        self, function: Callable[[T, TaskEnvironment], R], items: Iterable[T], access: AccessOptions | None = None
    ) -> Iterator[Outcome[T, R]]:
        """Run pieces of work, `concurrent` at a time, until the time limit: see `tasks`. `access`: in place of that of
        the cluster of `--metadata`."""
        return run_tasks(
            self.spark,
            function,
            items,
            concurrent=self.concurrent,
            environment=self.environment(access),
            go_on=lambda: self.in_time,
        )

    def log(self, text: str) -> None:
        """A line for people, on standard error."""
        self.progress.close()
        print(f"{self.name}: {one_line(text)}", file=sys.stderr, flush=True)

    # --- its end ----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop a session that was started here, and the clients of this process."""
        self.progress.close()
        from pyspark_bookie.common.clients import close_clients

        close_clients()
        if self._spark is not None and self._ours:
            self._spark.stop()

    def __enter__(self) -> JobContext[A_co]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
