"""Arguments: typed, named, and one line for each mistake."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_bookie.common.ledger_ids import LedgerIds
from pyspark_bookie.jobs.framework.arguments import (
    DURATION,
    LEDGERS,
    SIZE,
    CommonArguments,
    HelpShown,
    UsageError,
    argument,
    parse,
)
from pyspark_bookie.jobs.framework.registry import find_job, job_names


@dataclass(frozen=True, kw_only=True)
class Arguments(CommonArguments):
    target: str = argument(help="Where it goes.", metavar="URI")
    size: int = argument(1 << 30, help="How much.", kind=SIZE)
    lag: float | None = argument(None, help="How long.", kind=DURATION)
    resume: bool = argument(True, help="Go on.")
    mode: str = argument("fast", help="How.", choices=("fast", "slow"))
    ledgers: LedgerIds | None = argument(None, help="Which.", kind=LEDGERS)  # noqa: RUF009 - it makes a field
    number: int | None = argument(None, help="How many.")


def read(*arguments: str) -> Arguments:
    return parse(Arguments, "bookie job x", "Does x.", ["--metadata", "m", *arguments])


def test_types_and_defaults() -> None:
    made = read("--target", "t")
    assert (made.size, made.lag, made.resume, made.mode, made.dry_run, made.option) == (
        1 << 30,
        None,
        True,
        "fast",
        False,
        (),
    )
    made = read(
        *("--target=t", "--size", "2g", "--lag", "3d", "--no-resume", "--mode", "slow", "--dry-run"),
        *("--ledgers", "5,7,9-12", "--number", "3", "--option", "a=b", "--option", "c=d", "--older_than", "90"),
    )
    assert (made.size, made.lag, made.resume, made.mode, made.dry_run) == (2 << 30, 3 * 86400, False, "slow", True)
    assert (str(made.ledgers), made.number, made.option, made.older_than) == ("5,7,9-12", 3, ("a=b", "c=d"), 90.0)


def test_the_cluster_comes_from_the_environment_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BK_metadataServiceUri", "zk://a:1/ledgers")
    assert parse(Arguments, "x", "", ["--target", "t"]).metadata == "zk://a:1/ledgers"
    monkeypatch.delenv("BK_metadataServiceUri")
    with pytest.raises(UsageError, match="--metadata is"):
        parse(Arguments, "x", "", ["--target", "t"])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "bookie job x: --target is missing; see bookie job x --help"),
        (("--targt", "x"), "bookie job x: unknown argument --targt: did you mean --target?"),
        (("--zzz",), "bookie job x: unknown argument --zzz: see bookie job x --help"),
        (("--target", "t", "x"), "unexpected extra argument (x)"),
        (("--target", "t", "--size", "3x"), "'--size': '3x' must be a positive number of bytes"),
        (("--target", "t", "--lag", "soon"), "'soon' must be a time, such as"),
        (("--target", "t", "--ledgers", "7-5"), "'7-5' has 7-5: ranges must ascend"),
        (("--target", "t", "--mode", "slw"), "'slw' is not one of 'fast', 'slow'"),
        (("--target", "t", "--max-concurrent", "0"), "must be a whole number of at least 1"),
        (("--target",), "requires an argument"),
        (("--target", ""), "bookie job x: --target is empty; see bookie job x --help"),
        (("--target", "\udcff"), "bookie job x: '\N{REPLACEMENT CHARACTER}' is not text in UTF-8"),
        (("--target", "t", "s3://KEY:S3CRET@bucket"), "unexpected extra argument (s3://...@bucket)"),
        (("--target", "t", "--number", "s3://KEY:S3CRET@bucket"), "'s3://...@bucket' is not a valid integer"),
        (("--target", "s3://KEY:S3CRET@\udcff"), "'s3://...@\N{REPLACEMENT CHARACTER}' is not text in UTF-8"),
    ],
)
def test_mistakes_are_one_line(arguments: tuple[str, ...], told: str) -> None:
    with pytest.raises(UsageError) as error:
        read(*arguments)
    assert told in str(error.value)
    assert "\n" not in str(error.value)


def test_help_shows_own_arguments_first(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(HelpShown):
        read("--help")
    shown = capsys.readouterr().out
    assert shown.index("--target URI") < shown.index("--metadata URI") < shown.index("--dry-run")
    assert "Does x." in shown


def test_a_password_has_no_argument_and_no_option() -> None:
    with pytest.raises(UsageError, match=r"unknown .*--password"):
        read("--target", "t", "--password", "secret")
    with pytest.raises(Exception, match="passwordFile"):
        read("--target", "t", "--option", "password=secret").access()
    with pytest.raises(UsageError, match=r"^--option: .*NAME=VALUE"):
        read("--target", "t", "--option", "tls").access()


def test_recorded_passwords_count_unless_a_file_is_given() -> None:
    assert read("--target", "t").access().recorded_passwords
    assert read("--target", "t", "--password-file", "p").access().password_file == "p"
    assert not read("--target", "t", "--password-file", "p").access().recorded_passwords


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 20)), min_size=1, max_size=8))
def test_sets_of_ledger_ids(spans: list[tuple[int, int]]) -> None:
    text = ",".join(str(first) if not more else f"{first}-{first + more}" for first, more in spans)
    ids = LedgerIds.parse(text)
    named = {each for first, more in spans for each in range(first, first + more + 1)}
    assert {each for each in range(350) if each in ids} == named
    assert LedgerIds.parse(str(ids)) == ids
    assert set(ids.singles()) <= {first for first, more in spans if not more}


def test_unknown_jobs_are_told_with_the_nearest_name() -> None:
    assert {"offload", "restore", "export", "import", "copy"} <= set(job_names())
    assert find_job("import").__name__ == "ImportJob"
    with pytest.raises(UsageError, match=r"'of-load': .* offload"):
        find_job("of-load")
    with pytest.raises(UsageError, match=r"unknown .*'12345'"):
        find_job("12345")


def test_every_job_has_a_summary_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    for name in job_names():
        marked = find_job(name)
        assert marked.__doc__.strip()
        with pytest.raises(HelpShown):
            parse(marked.Arguments, name, marked.__doc__, ["--help"])
    assert "--dry-run" in capsys.readouterr().out
