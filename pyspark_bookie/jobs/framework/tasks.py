"""Pieces of work on Spark: each is one task of its own, so that what is done counts whatever becomes of the rest.

    for outcome in run_tasks(session, offload_ledger, ledgers, concurrent=8, environment=environment):
        ...                                                        # in the order in which they end

`function(item, environment)` is called on an executor. It is pickled by reference, as are the classes of items and
results: modules of this package.

Invariants
- At most `concurrent` tasks are under way, and as many results wait.
- An error of a piece is its outcome; it neither ends the others nor is it lost. What Spark repeats after the loss of an
  executor is the whole piece: functions have to be idempotent.
- When the caller stops iterating nothing new is begun, and what is under way is cancelled.

Driver: any one thread. Works through Spark Connect too.
"""

from __future__ import annotations

import functools
import pickle
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from bookie_protocol.errors import PodkeeperError
from bookie_protocol.shown import one_line
from pyspark_bookie.common.access import AccessOptions
from pyspark_bookie.common.errors import PodkeeperSparkError, code_of
from pyspark_bookie.common.throttle import Throttle

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from bookie_client.blocking import BlockingClient

T = TypeVar("T")
R = TypeVar("R")

_SCHEMA: Final = "result binary"
_RAISED: Final = re.compile(r"(?!org\.|java\.|scala\.|py4j\.)[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit): ")
UNEXPECTED: Final = "UNEXPECTED"
LARGEST_PIECE: Final = 1024 * 1024
"""Bytes of one request of a task whose rate is limited, at most;"""
PIECES_AHEAD: Final = 16
"""and so many of them are read ahead of what the limit lets pass."""


@dataclass(frozen=True)
class TaskEnvironment:
    """The environment of a piece of work. `bytes_per_second` is the share of one task; None: no limit."""

    access: AccessOptions
    bytes_per_second: float | None = None

    def client(self) -> BlockingClient:
        """The process's client; not to be closed. Under a limit it reads by small requests, and little ahead."""
        from bookie_client.replication.throttle import piece_bytes

        if self.bytes_per_second is None:
            return self.access.client()
        piece = piece_bytes(self.bytes_per_second, LARGEST_PIECE)
        return self.access.client(batch_read_bytes=piece, read_window_bytes=PIECES_AHEAD * piece)

    def throttle(self) -> Throttle:
        """A new one; a piece uses one for all it moves."""
        return Throttle(self.bytes_per_second)


@dataclass(frozen=True)
class TaskError:
    """The failure of a piece. `code`: as in `PodkeeperSparkError`, or UNEXPECTED. `message`: one line."""

    code: str
    message: str


@dataclass(frozen=True)
class Outcome(Generic[T, R]):
    """The end of one piece: `result`, or `error`."""

    item: T
    result: R | None
    error: TaskError | None

    @property
    def failure(self) -> TaskError:
        """Return why there is no result."""
        return self.error or TaskError("SPARK", "no result")


def run_tasks(
    session: SparkSession,
    function: Callable[[T, TaskEnvironment], R],
    items: Iterable[T],
    *,
    concurrent: int,
    environment: TaskEnvironment,
    go_on: Callable[[], bool] = lambda: True,
) -> Iterator[Outcome[T, R]]:
    """Run all items, until `go_on` says no: then only what is under way is waited for."""
    waiting = iter(items)
    under_way: dict[Future[tuple[R | None, TaskError | None]], T] = {}
    pool = ThreadPoolExecutor(max_workers=max(1, concurrent), thread_name_prefix="job")
    try:
        while True:
            while len(under_way) < concurrent and go_on():
                try:
                    item = next(waiting)
                except StopIteration:
                    break
                under_way[pool.submit(_run_one, session, function, item, environment)] = item
            if not under_way:
                return
            for ended in wait(under_way, return_when=FIRST_COMPLETED).done:
                item = under_way.pop(ended)
                result, error = ended.result()
                yield Outcome(item, result, error)
    finally:
        if under_way:
            _cancel(session)
        pool.shutdown(wait=True, cancel_futures=True)


def task_error(error: BaseException) -> TaskError:
    """An error as an outcome."""
    if isinstance(error, PodkeeperSparkError):
        return TaskError(error.code, one_line(error.message))
    if isinstance(error, PodkeeperError):
        return TaskError(code_of(error), one_line(error))
    text = one_line(error) or "no message"
    code = "INPUT_OUTPUT" if isinstance(error, OSError) else UNEXPECTED
    return TaskError(code, text if code != UNEXPECTED else f"{type(error).__name__}: {text}")


def _run_one(
    session: SparkSession, function: Callable[[T, TaskEnvironment], R], item: T, environment: TaskEnvironment
) -> tuple[R | None, TaskError | None]:
    work = functools.partial(_ended, function, item, environment)
    try:
        context = _spark_context(session)
        if context is not None:
            found = context.parallelize([0], 1).map(functools.partial(_in_task, work)).collect()[0]
        else:
            found = bytes(
                session.range(0, 1, 1, 1).mapInArrow(functools.partial(_arrow, work), _SCHEMA).collect()[0][0]
            )
        result: tuple[R | None, TaskError | None] = pickle.loads(found)
        return result
    except Exception as error:  # Spark's own failures: a lost executor, a worker that was killed
        return None, TaskError("SPARK", last_line(error))


def _spark_context(session: SparkSession) -> SparkContext | None:
    """None: Spark Connect. There `mapInArrow` does the same; where there is a context it would ask for pandas too."""
    try:
        return session.sparkContext
    except Exception:  # of several types, by version
        return None


def _in_task(work: Callable[[], bytes], _: int) -> bytes:
    return work()


def _arrow(work: Callable[[], bytes], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for _ in batches:  # one row, which says nothing
        pass
    yield pa.RecordBatch.from_arrays([pa.array([work()], pa.binary())], ["result"])


def _ended(function: Callable[[Any, TaskEnvironment], Any], item: Any, environment: TaskEnvironment) -> bytes:
    try:
        ended: tuple[Any, TaskError | None] = function(item, environment), None
    except Exception as error:
        ended = None, task_error(error)
    return pickle.dumps(ended)


def last_line(error: BaseException) -> str:
    """Return the relevant line of an error of Spark's: this package's error, else the end of the Python traceback
    in it, else its first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if "[BOOKIE_" in line]
    if told:
        return told[-1][told[-1].index("[BOOKIE_") :]
    if any(line.startswith("Traceback (most recent call last)") for line in lines):
        raised = [line for line in lines if _RAISED.match(line)]
        if raised:
            return raised[-1]
    return lines[0] if lines else type(error).__name__


def _cancel(session: SparkSession) -> None:
    try:
        session.sparkContext.cancelAllJobs()
    except Exception:  # Spark Connect has no context; or the JVM is gone
        try:
            session.interruptAll()
        except Exception:
            return
