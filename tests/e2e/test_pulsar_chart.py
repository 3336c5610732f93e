"""Our image in the place of the chart's: bookies, init Job and auto-recovery as the chart of Apache Pulsar makes them,
from the first start; and four Java bookies that become ours and Java again, pod by pod, under a writer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

from tests.e2e.support.pulsar_chart import PulsarChart

MakeChart = Callable[[str], PulsarChart]


@pytest.fixture
def make_chart(kube, zookeeper_service) -> Iterator[MakeChart]:
    made: list[PulsarChart] = []

    def make(name: str) -> PulsarChart:
        made.append(PulsarChart(kube, name, zookeeper_service.hosts))
        return made[-1]

    yield make
    for chart in made:
        chart.uninstall()


def shell(kube, chart: PulsarChart, words: str, *, refused: bool = False) -> str:
    """What a command of Apache's shell prints in the container of the first bookie; `refused`: it has to."""
    line = f"export BOOKIE_LEDGER_PASSWORD=workload; bin/bookkeeper shell {words} 2>&1; echo exit code $?"
    printed = kube.run_in_pod(chart.pod(0), chart.bookie, "sh", "-c", line)
    assert printed.rstrip().endswith("exit code 0") is not refused, f"{words}: {printed}"
    return printed


def test_a_fresh_install(make_chart, make_workload, kube, settings, zookeeper_service):
    """With the commands of Apache's shell, each as a runbook would have it; the fourth bookie is taken out by them."""
    chart = make_chart("moved")
    chart.install(settings.pulsar_image, replicas=4)
    uri = zookeeper_service.uri("/moved/ledgers", "hierarchical")
    ids = [chart.id_of(number) for number in range(4)]

    def run(words: str, *expected: str, refused: bool = False) -> str:
        printed = shell(kube, chart, words, refused=refused)
        missing = [each for each in expected if each not in printed]
        assert not missing, f"{words} does not say {missing}: {printed}"
        return printed

    with make_workload(chart.name, uri) as workload:
        workload.progress(200)
        run("whatisinstanceid", "InstanceId:")
        run("listbookies -rw -h", *ids)
        run("listbookies -ro")
        run("bookieinfo", *ids)
        run("clusterinfo")
        ledger = re.search(r"\b\d+\b", run("listledgers"))[0]
        run(f"ledgermetadata -ledgerid {ledger}", ledger)
        run(f"readledger -ledgerid {ledger} -firstentryid 0 -lastentryid 0")
        run("lastmark", ".txn at")
        run("listfilesondisc -txn -log", "/pulsar/data/bookkeeper/journal/current/")
        run(f"ledger {ledger}", "stop that bookie first", refused=True)
        run("simpletest -e 3 -w 3 -a 2 -n 20")
        run("bookiesanity")
        run("listunderreplicated")
        run("queryautorecoverystatus")
        run("triggeraudit")
        run("forceauditchecks -calc")
        run("autorecovery -disable")
        run("autorecovery -enable")
        run("lostbookierecoverydelay -set 4")
        run("lostbookierecoverydelay -get", "4")
        run("whoisauditor", chart.recovery)
        run(f"cookie_get {ids[0]}", "/pulsar/data/bookkeeper/ledgers")
        run(
            "cookie_generate -j /pulsar/data/bookkeeper/journal -l /pulsar/data/bookkeeper/ledgers -o /tmp/cookie "
            + ids[0]
        )
        run(f"cookie_update -cf /tmp/cookie {ids[0]}")
        run(f"cookie_create -cf /tmp/cookie {ids[0]}", refused=True)
        run("recover -q " + ids[3])
        # What would destroy something that is there says so, and does nothing.
        run("initnewcluster", refused=True)
        run("metaformat -nonInteractive")
        run("bookieformat -nonInteractive -force -deleteCookie", refused=True)
        run("updatecookie -b hostname", "not possible here", refused=True)
        run("no-such-command", "`bookie shell help` lists them", refused=True)
        workload.progress()

        chart.scale(3)
        run(f"decommissionbookie -bookieid {ids[3]}")
        assert ids[3] not in run("listbookies -a")
        run(f"cookie_get {ids[3]}", refused=True)
        workload.progress()


def test_java_bookies_become_ours_and_java_again(make_chart, make_workload, kube, settings, zookeeper_service):
    """One more than the ensemble, as Java's auto-recovery finds no place otherwise for what a bookie missed while it
    restarted. Leaving the writer's block reads every copy of every acknowledged entry."""
    chart = make_chart("upgraded")
    chart.install(settings.java_image, replicas=4)
    uri = zookeeper_service.uri("/upgraded/ledgers", "hierarchical")
    instance = re.search(r"InstanceId: *(\S+)", shell(kube, chart, "whatisinstanceid"))[1]
    with make_workload(chart.name, uri) as workload:
        workload.progress(400)
        chart.upgrade(settings.pulsar_image)
        workload.progress(400)
        assert instance in shell(kube, chart, "whatisinstanceid")
        shell(kube, chart, "listunderreplicated")

        chart.upgrade(settings.java_image)
        workload.progress(400)
        assert instance in shell(kube, chart, "whatisinstanceid")
