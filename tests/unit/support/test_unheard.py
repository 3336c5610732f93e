"""What nobody hears of fails the test in which it happens."""

from __future__ import annotations

import pytest

from tests.support import unheard

pytest_plugins = ["pytester"]

CASES = {
    "a callback": """
        async def test_it():
            asyncio.get_running_loop().call_soon(lambda: 1 / 0)
            await asyncio.sleep(0)
    """,
    "a task that nobody awaits": """
        async def fails():
            raise ValueError("nobody asks")

        async def test_it():
            asyncio.get_running_loop().create_task(fails())
            await asyncio.sleep(0.01)
    """,
    "a log line of a fault": """
        def test_it():
            try:
                structlog.nothing_of_this_name
            except AttributeError as error:
                structlog.get_logger().error("a step failed", exc_info=error)
    """,
    "a finalizer": """
        class Broken:
            def __del__(self):
                raise ValueError("too late")

        def test_it():
            Broken()
    """,
}
HEARD = {
    "a loop with a handler of its own": """
        async def test_it():
            asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
            asyncio.get_running_loop().call_soon(lambda: 1 / 0)
            await asyncio.sleep(0)
    """,
    "a log line of an error that may happen": """
        def test_it():
            structlog.get_logger().error("a disk failed", exc_info=OSError("no space"))
    """,
    "a fault on purpose": """
        def test_it():
            with structlog.testing.capture_logs():
                structlog.get_logger().error("a step failed", exc_info=AttributeError("x"))
    """,
}


def outcome(pytester: pytest.Pytester, case: str) -> tuple[bool, str]:
    head = "import asyncio, structlog, structlog.testing\nfrom tests.support import unheard\nunheard.listen_to_logs()\n"
    pytester.makepyfile(head + "\n".join(line[8:] for line in case.splitlines()))
    pytester.makeini(
        "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\nfilterwarnings = error\n"
    )
    done = pytester.runpytest_inprocess("-p", "no:schemathesis", "--code-highlight=no", plugins=[unheard])
    return done.ret == 0, done.stdout.str()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_nobody_hears_fails(pytester: pytest.Pytester, case: str) -> None:
    passed, said = outcome(pytester, case)
    assert not passed, said


@pytest.mark.parametrize("case", HEARD.values(), ids=HEARD)
def test_what_somebody_hears_does_not(pytester: pytest.Pytester, case: str) -> None:
    passed, said = outcome(pytester, case)
    assert passed, said


def test_of_a_test_whose_teardown_fails_nothing_is_told_to_the_next(pytester: pytest.Pytester) -> None:
    case = """
        import pytest

        @pytest.fixture
        def broken():
            yield
            raise OSError("no space")

        async def test_it(broken):
            asyncio.get_running_loop().call_soon(lambda: 1 / 0)
            await asyncio.sleep(0)

        def test_next():
            pass
    """
    _, said = outcome(pytester, case)
    assert "2 passed, 1 error" in said, said
