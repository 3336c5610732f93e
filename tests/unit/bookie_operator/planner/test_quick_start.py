"""The cluster that the pages have people make first becomes Ready, on one node as on three."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from bookie_operator.builders.build import build
from bookie_operator.builders.context import BuildContext
from bookie_operator.crds.cluster_spec import BookieClusterSpec
from bookie_operator.crds.validation import validate
from bookie_operator.planner import holding
from bookie_operator.planner.decision import Wait
from bookie_operator.planner.plan import plan
from bookie_operator.status import conditions, reporting
from tests.support.chart_files import CLUSTER, ROOT
from tests.support.operator_clusters import cluster
from tests.support.operator_sim import Simulation

PAGES = ["README.md", "docs/operator.md"]


def quick_start(page: str, *without: str) -> dict[str, Any]:
    """The `spec` of the first cluster of a page: README's example, or what Helm makes of the chart's values and the
    command that installs it."""
    text = Path(ROOT, page).read_text(encoding="utf-8")
    if page == "README.md":
        (example, *_) = re.findall(r"kubectl apply .*-f (examples/kubernetes/\S+\.yaml)", text)
        spec = dict(yaml.safe_load(Path(ROOT, example).read_text(encoding="utf-8"))["spec"])
        return {key: each for key, each in spec.items() if f"spec.{key}.nodes" not in without}
    (command, *_) = re.findall(r"helm install demo charts/podkeeper-cluster(?:.*\\\n)*.*", text)
    values = yaml.safe_load((CLUSTER / "values.yaml").read_text(encoding="utf-8"))
    given = re.findall(r"--set (\S+)=(\S+)", command)
    assert given
    for path, text in given:
        node = values
        *way, last = path.split(".")
        for key in way:
            node = node.setdefault(key, {})
        if path not in without:
            node[last] = text
    chart = yaml.safe_load((CLUSTER / "Chart.yaml").read_text(encoding="utf-8"))
    return {**values["spec"], "version": values["spec"]["version"] or str(chart["appVersion"])}


def on(nodes: int, asked: dict[str, Any]) -> Simulation:
    """As a scheduler places the bookies that are built of `spec`."""
    view = cluster(asked)
    assert validate(view.spec, view.status) == ()
    sim = Simulation(BookieClusterSpec.model_validate(asked))
    for one in build(view, BuildContext()).sets:
        pod = one.manifest["spec"]["template"]["spec"]
        apart = pod["affinity"]["podAntiAffinity"].get("requiredDuringSchedulingIgnoredDuringExecution", ())
        if apart:
            sim.kubernetes.room = nodes
        assert all(each["whenUnsatisfiable"] == "ScheduleAnyway" for each in pod.get("topologySpreadConstraints", ()))
    return sim


def ready(sim: Simulation) -> conditions.Condition:
    world, desired = sim.world(), holding.hold(sim.world(), sim.desired())
    status = reporting.status_after(world, desired, plan(world, desired), sim.status, "")
    return next(each for each in status.conditions if each.type == "Ready")


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("nodes", [1, 3])
def test_the_first_cluster_of_a_page_becomes_ready(page: str, nodes: int) -> None:
    sim = on(nodes, quick_start(page))
    sim.run_until_rest(most=100)
    assert len(sim.bookkeeper.writable) == sim.spec.replicas
    assert ready(sim).status == conditions.TRUE


@pytest.mark.parametrize("page", PAGES)
def test_without_sharing_nodes_it_says_what_lacks(page: str) -> None:
    """As the page says: each bookie has a node of its own then."""
    sim = on(2, quick_start(page, "spec.placement.nodes"))
    sim.run_until_stalled("Unschedulable", most=100)
    assert ready(sim).status == conditions.FALSE
    told = [one for one in (sim.passes[-1].plan.decision, *sim.passes[-1].plan.notes) if isinstance(one, Wait)]
    assert any("lower spec.replicas" in one.message for one in told)
    sim.change(placement={"nodes": "Shared"})
    sim.kubernetes.room = 1000
    sim.run_until_rest()
    assert ready(sim).status == conditions.TRUE
