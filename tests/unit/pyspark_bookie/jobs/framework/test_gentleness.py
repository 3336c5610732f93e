"""How much a job takes from others, by default and as it is told."""

from __future__ import annotations

import pytest

from bookie_client.options import ClientOptions
from pyspark_bookie.common import clients
from pyspark_bookie.jobs.framework.arguments import GENTLE_BYTES_PER_SECOND, CommonArguments, UsageError, parse
from pyspark_bookie.jobs.framework.context import JobContext
from pyspark_bookie.jobs.framework.registry import find_job, job_names
from pyspark_bookie.jobs.framework.tasks import PIECES_AHEAD, TaskEnvironment

MIB = 1024 * 1024
WALKERS = {"audit", "offload", "recover", "scrub"}


def arguments(*words: str, name: str = "audit") -> CommonArguments:
    needed = ("--target", "t") if name == "offload" else ()
    return parse(find_job(name).Arguments, name, "", ["--metadata", "embedded://x", *needed, *words])


def environment(*words: str, name: str = "audit") -> TaskEnvironment:
    return JobContext(name, arguments("--max-concurrent", "4", *words, name=name)).environment()


def test_what_walks_everything_has_a_limit_and_other_jobs_have_none():
    limited = {name for name in job_names() if find_job(name).Arguments.slot_bytes_per_second is not None}
    assert limited == WALKERS
    for name in WALKERS:
        assert arguments(name=name).bytes_per_second(3) == 3 * GENTLE_BYTES_PER_SECOND
        assert arguments("--max-bytes-per-second", "8m", name=name).bytes_per_second(3) == 8 * MIB
    assert arguments(name="space").bytes_per_second(3) is None
    assert arguments("--max-bytes-per-second", "8m", name="space").bytes_per_second(3) == 8 * MIB


def test_each_task_has_its_share():
    assert environment().bytes_per_second == GENTLE_BYTES_PER_SECOND
    assert environment("--max-bytes-per-second", "8m").bytes_per_second == 2 * MIB
    assert environment("--max-bytes-per-second", "none").bytes_per_second is None
    assert environment("--max-bytes-per-second", "NONE").bytes_per_second is None


def test_the_processors_are_left_to_others():
    assert arguments().niceness == 19
    assert arguments("--niceness", "3").niceness == 3


def test_a_limit_that_is_none_is_refused():
    with pytest.raises(UsageError, match="'0' must"):
        arguments("--max-bytes-per-second", "0")


@pytest.fixture
def made(monkeypatch):
    """Options of the clients that are asked for."""
    found: list[ClientOptions] = []
    monkeypatch.setattr(clients, "client", lambda uri, options, placement: found.append(options))
    return found


def test_under_a_limit_requests_are_small_and_little_is_read_ahead(made):
    environment().client()
    (limited,) = made
    assert limited.batch_read_bytes == GENTLE_BYTES_PER_SECOND // 160
    assert limited.read_window_bytes == PIECES_AHEAD * limited.batch_read_bytes


def test_without_a_limit_they_are_as_they_are_elsewhere(made):
    environment("--max-bytes-per-second", "none").client()
    assert (made[0].batch_read_bytes, made[0].read_window_bytes) == (
        ClientOptions().batch_read_bytes,
        ClientOptions().read_window_bytes,
    )


def test_what_a_user_sets_counts(made):
    environment("--option", "client.batchReadBytes=77777").client()
    assert made[0].batch_read_bytes == 77777
    assert made[0].read_window_bytes == PIECES_AHEAD * (GENTLE_BYTES_PER_SECOND // 160)
