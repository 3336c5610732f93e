"""The charts and the bundle of a release, judged by Helm: they are made without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from release import bundle
from release.building import archive_folder
from release.facts import CHARTS, ROOT, Address, Made, version_of
from release.staging import stage
from tests.support.helm_charts import lint, render

ADDRESS = Address("some-owner/podkeeper")
OF_HELM = {"app.kubernetes.io/managed-by", "app.kubernetes.io/part-of", "app.kubernetes.io/version", "helm.sh/chart"}
VALUES: dict[str, dict[str, Any]] = {
    "podkeeper-operator": {"clusterWide": True},
    "podkeeper-cluster": {"spec": {"metadataService": {"type": "Embedded"}}},
}


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The charts of a release, as they are pushed."""
    source = tmp_path_factory.mktemp("source")
    stage(ROOT, source, ADDRESS)
    made = Made(tmp_path_factory.mktemp("made"), ADDRESS, version_of(ROOT))
    for name in CHARTS:
        made.chart(name).write_bytes(archive_folder(source / "charts" / name, name))
    return made


@pytest.mark.parametrize("chart", CHARTS)
def test_helm_takes_a_published_chart(published: Made, tmp_path: Path, chart: str) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump(VALUES[chart]))
    lint(published.chart(chart), values)


def test_the_deployment_of_the_bundle_is_that_of_the_chart(published: Made) -> None:
    objects = render(published.chart("podkeeper-operator"), values=VALUES["podkeeper-operator"])
    (deployment,) = [each["spec"] for each in objects if each["kind"] == "Deployment"]
    for label in OF_HELM:
        del deployment["template"]["metadata"]["labels"][label]
    # OpenShift gives a user of the namespace, and the image has one of its own.
    for field in ("runAsUser", "runAsGroup"):
        del deployment["template"]["spec"]["securityContext"][field]
    assert bundle.deployment(ROOT, ADDRESS) == deployment
