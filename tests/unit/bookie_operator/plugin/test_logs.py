"""`kubectl bookie logs`: merged in the order of time, bounded, followed over restarts."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator

import pytest

from bookie_operator.plugin import log_reading
from bookie_operator.plugin.log_reading import Line
from tests.support.fake_kubernetes.cluster import NAME
from tests.support.kubectl_rig import KubectlRig
from tests.support.until import until

_TIME = "2027-01-01T00:00:{:02}.000000000Z"


def _at(second: int, words: str) -> str:
    return f"{_TIME.format(second)} {words}"


async def _all_pods(rig: KubectlRig) -> list[str]:
    pods = [*rig.fake.pods(), *rig.fake.pods("autorecovery"), "demo-metadata-init-abcde"]
    for pod in pods:
        rig.logs.setdefault(pod, [])
    return sorted(pods)


async def test_lines_are_merged_by_time_after_the_name_of_their_pod(
    rig: KubectlRig, capsys: pytest.CaptureFixture[str]
) -> None:
    await _all_pods(rig)
    rig.logs["demo-bookie-0"] = [_at(1, "one"), _at(4, "four")]
    rig.logs["demo-bookie-1"] = [_at(2, "two"), _at(3, "three")]
    assert await rig.run("logs", NAME) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [(line[0], line[-1]) for line in lines] == [
        ("demo-bookie-0", "one"),
        ("demo-bookie-1", "two"),
        ("demo-bookie-1", "three"),
        ("demo-bookie-0", "four"),
    ]


async def test_one_pod_so_many_lines_and_the_container_before(
    rig: KubectlRig, capsys: pytest.CaptureFixture[str]
) -> None:
    rig.logs["demo-bookie-0"] = [_at(number, f"line {number}") for number in range(50)]
    rig.logs["demo-bookie-0.previous"] = [_at(1, "before")]
    assert await rig.run("logs", NAME, "--bookie", "demo-bookie-0", "--tail", "3") == 0
    assert [line[-7:] for line in capsys.readouterr().out.splitlines()] == ["line 47", "line 48", "line 49"]
    assert await rig.run("logs", NAME, "--bookie", "demo-bookie-0", "-p") == 0
    assert capsys.readouterr().out.endswith("before\n")


async def test_what_cannot_be_read_is_told_and_the_rest_is_shown(
    rig: KubectlRig, capsys: pytest.CaptureFixture[str]
) -> None:
    rig.logs["demo-bookie-0"] = [_at(1, "one")]
    assert await rig.run("logs", NAME) == 12, "what is shown is not all"
    captured = capsys.readouterr()
    assert captured.out.endswith("one\n")
    assert "5 of 6 logs could not be read" in captured.err
    assert "the log of pod demo-bookie-1 cannot be read" in captured.err
    del rig.logs["demo-bookie-0"]
    assert await rig.run("logs", NAME) == 12
    assert capsys.readouterr().err.splitlines()[-1] == "kubectl-bookie: no log could be read"


async def test_a_log_that_is_too_long_says_where_it_was_cut(
    rig: KubectlRig, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reading, "_MAX_BYTES", log_reading.MAX_LINE + 100)
    rig.logs["demo-bookie-0"] = [_at(number, "x" * 30) for number in range(4)]
    assert await rig.run("logs", NAME, "--bookie", "demo-bookie-0") == 0
    assert "the log goes on, and is cut here" in capsys.readouterr().out.splitlines()[-1]
    rig.logs["demo-bookie-0"] = [_at(1, "x")]
    assert await rig.run("logs", NAME, "--bookie", "demo-bookie-0") == 0
    assert "cut here" not in capsys.readouterr().out


async def test_no_such_pod(rig: KubectlRig, capsys: pytest.CaptureFixture[str]) -> None:
    assert await rig.run("logs", NAME, "--bookie", "demo-bookie-9") == 11
    assert "cluster demo has no pod demo-bookie-9; it has: demo-autorecovery" in capsys.readouterr().err


async def test_a_long_line_is_cut_and_a_torn_character_is_no_fault(
    rig: KubectlRig, capsys: pytest.CaptureFixture[str]
) -> None:
    rig.logs["demo-bookie-0"] = [_at(1, "x" * (3 * log_reading.MAX_LINE)), _at(2, "ü" * log_reading.MAX_LINE)]
    assert await rig.run("logs", NAME, "--bookie", "demo-bookie-0") == 0
    first, second = capsys.readouterr().out.splitlines()
    assert len(first) <= log_reading.MAX_LINE + len("demo-autorecovery-0 ") + 20
    assert len(second.encode()) <= log_reading.MAX_LINE + 40


async def test_following_goes_on_with_what_is_written_and_with_new_pods(
    rig: KubectlRig, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reading, "_LOOK_EVERY_S", 0.01)
    pods = await _all_pods(rig)
    rig.logs["demo-bookie-0"] = [_at(1, "before")]
    stop = asyncio.Event()
    real = log_reading.Follower.lines
    loop = asyncio.get_running_loop()
    seen: list[Line] = []

    async def until_the_last(self: log_reading.Follower) -> AsyncIterator[Line]:
        lines = real(self)
        async for line in lines:
            seen.append(line)
            yield line
            if line.text == "the last":
                await lines.aclose()
                loop.call_soon_threadsafe(stop.set)
                return

    monkeypatch.setattr(log_reading.Follower, "lines", until_the_last)
    following = asyncio.create_task(rig.run("logs", NAME, "-f"))
    await until(lambda: set(pods) <= set(rig.followed) and seen, 20)
    await rig.write("demo-bookie-1", _at(2, "while it was followed"))
    await until(lambda: len(seen) == 2, 20)
    await rig.write("demo-bookie-2", _at(3, "the last"))
    await stop.wait()
    assert await asyncio.wait_for(following, 20) == 0, "it ends although nothing more is written"
    out = capsys.readouterr().out.splitlines()
    words = [line.partition("Z ")[2] for line in out]
    assert words == ["before", "while it was followed", "the last"]


def test_lines_are_ordered_by_time_then_pod() -> None:
    lines = [Line(time, pod, "x") for time, pod in itertools.product(("2", "1"), ("b", "a"))]
    assert [(line.time, line.pod) for line in sorted(lines)] == [("1", "a"), ("1", "b"), ("2", "a"), ("2", "b")]
