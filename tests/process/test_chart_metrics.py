"""Every metric that alerts and dashboards ask for is exported: by a bookie, by auto-recovery, or by the operator."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

from bookie_operator.crds.cluster_status import BackupStatus, Condition, Operation, OperationType
from bookie_operator.crds.job_spec import BookieJobStatus, Run, RunOutcome
from bookie_operator.metrics import OperatorMetrics
from bookie_pod.node.standalone.cluster import StandaloneCluster
from bookie_pod.storage.engines.detection import KNOWN_ENGINES, short_name
from tests.support.auto_recovery import AutoRecoveryProcess
from tests.support.chart_files import FROM_PROMETHEUS, Query, metrics, queries
from tests.support.http_answers import ask
from tests.support.small_bookie import SMALL_BOOKIE
from website.pages.metrics import groups

A_TIME = "2026-01-01T00:00:00Z"


def names(text: str) -> set[str]:
    """Of all series, as Prometheus reads them; those that end in `_count` and `_sum` too."""
    assert list(text_string_to_metric_families(text)), "it has to be a page that Prometheus takes"
    return {line.partition(" ")[0].partition("{")[0] for line in text.splitlines() if line and line[0] != "#"}


@pytest_asyncio.fixture(loop_scope="module", scope="module", params=KNOWN_ENGINES, ids=map(short_name, KNOWN_ENGINES))
async def scraped(tmp_path_factory, request: pytest.FixtureRequest) -> tuple[str, str]:
    """Of a bookie of one engine, and of auto-recovery."""
    work: Path = tmp_path_factory.mktemp("metrics")
    settings = {**SMALL_BOOKIE, "ledgerStorageClass": request.param}
    async with StandaloneCluster(work / "cluster", 1, settings, http_port=0) as cluster:
        (bookie,) = cluster.bookies.values()
        of_bookie = (await ask(bookie.http_port or 0, "/metrics")).body
        with AutoRecoveryProcess(work / "autorecovery", cluster.metadata_service_uri) as process:
            await process.ready()
            return of_bookie, process.get("/metrics")[1]


@pytest.fixture(scope="module")
def exported(scraped: tuple[str, str]) -> set[str]:
    return {name for page in scraped for name in names(page)}


def operator_metrics() -> set[str]:
    """Of an operator that has seen each kind of thing once."""
    made = OperatorMetrics()
    operation = Operation(id="Rollout-1", type=OperationType.ROLLOUT, step="Soak")
    made.passed("storage", "events", 0.1, 1.0)
    made.failed("storage", "events", "Conflict")
    made.decided("storage", "events", "Wait", "Soak")
    made.operation("storage", "events", operation, 1.0, 2.0)
    made.told("storage", "events", [Condition(type="Ready", status="True", reason="AllBookiesReady")])
    made.backup("storage", "events", BackupStatus(last_successful_time=A_TIME, next_schedule_time=A_TIME))
    run = Run(job="audit-1", uid="1", outcome=RunOutcome.FAILED)
    made.jobs.told("storage", "nightly", "audit", BookieJobStatus(last_outcome="Failed", history=[run]), [run])
    return names(made.render().decode())


def missing(query: Query, known: set[str]) -> list[str]:
    """What a query asks for and nobody exports."""

    def there(name: str) -> bool:
        if name.startswith("~"):
            return any(re.fullmatch(name[1:], each) for each in known)
        return name in known or name in FROM_PROMETHEUS

    return [f"{query.where}: {name}" for name in sorted(metrics(query)) if not there(name)]


def test_a_metric_that_nobody_exports_is_noticed(exported: set[str]):
    query = Query("example", 'sum(rate(bookie_NO_SUCH[5m])) + bookie_SERVER_STATUS + {__name__=~"no_such_.*"} + up')
    assert missing(query, exported) == ["example: bookie_NO_SUCH", "example: ~no_such_.*"]


def test_metrics_of_all_queries_are_exported(exported: set[str]):
    known = exported | operator_metrics()
    assert [each for query in queries() for each in missing(query, known)] == []


def test_page_of_metrics_has_all_with_type_and_labels(scraped: tuple[str, str]):
    known = {each.name: each for group in groups() for each in group.metrics}
    for page in scraped:
        types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", page, re.MULTILINE))
        for name, kind in types.items():
            plain = re.sub(r"_dir_\w+_usage$", "_dir_PATH_usage", re.sub(r"(usage_buckets_le)_\d+$", r"\1_10", name))
            assert plain in known, f"website/metrics.toml says nothing of {name}"
            assert known[plain].type == kind, name
            (labels,) = {frozenset(re.findall(r'(\w+)="', line)) for line in _series(page, name, kind)}
            assert labels - {"success", "quantile", "le", "thread", "threadPool"} <= {*known[plain].labels}, name


def _series(page: str, name: str, kind: str) -> list[str]:
    sample = f"{name}_bucket" if kind == "histogram" else name
    return re.findall(rf"^{sample}(?:\{{.*\}})? ", page, re.MULTILINE)
