"""Names: short enough, told apart, and independent of everything else."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookie_operator.builders import naming
from bookie_operator.builders.build import build
from bookie_operator.builders.context import CERT_MANAGER, PROMETHEUS_OPERATOR, BuildContext
from tests.support.operator_clusters import LONGEST_NAME, MINIMAL, cluster

LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
EVERY_KIND = BuildContext(api_groups=frozenset({CERT_MANAGER, PROMETHEUS_OPERATOR}))
cluster_names = st.from_regex(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?", fullmatch=True)
zone_names = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", fullmatch=True)


@settings(max_examples=20)
@given(name=cluster_names, zones=st.lists(zone_names, max_size=4, unique=True))
def test_every_name_is_a_label(name: str, zones: list[str]) -> None:
    spec = {
        **MINIMAL,
        "metadataService": {"type": "Embedded"},
        "placement": {"zones": [{"name": zone} for zone in zones]},
        "tls": {"enabled": True, "issuerRef": {"name": "x"}},
        "monitoring": {"podMonitor": {"enabled": True}},
        "gateway": {"enabled": True},
        "backup": {"schedule": "@daily"},
        "replicas": 200,
    }
    found = build(cluster(spec, name=name), EVERY_KIND)
    manifests = [*found.objects.values(), found.destroy_job]
    objects = [manifest["metadata"]["name"] for manifest in manifests]
    sets = [each.name for each in found.sets]
    pods = [*found.bookie_ids, *(naming.pod(each, 999) for each in sets)]
    assert [each for each in [*objects, *pods] if not LABEL.fullmatch(each)] == []
    assert [each for each in sets if len(each) > 52] == []
    assert len({(each["kind"], each["metadata"]["name"]) for each in manifests}) == len(manifests)


@pytest.mark.parametrize(
    ("name", "zone", "expected"),
    [
        ("demo", "", "demo-bookie"),
        ("demo", "eu-1a", "demo-bookie-eu-1a"),
        ("demo", "Rack_1", r"demo-bookie-rack-1-[0-9a-f]{4}"),
        (LONGEST_NAME, "", f"{LONGEST_NAME}-bookie"),
        (LONGEST_NAME, "eu-central-1a", f"{LONGEST_NAME}-bookie-[0-9a-f]{{4}}"),
        ("demo", "z" * 63, r"demo-bookie-z{35}-[0-9a-f]{4}"),
    ],
)
def test_a_stateful_set_is_named_by_its_zone(name: str, zone: str, expected: str) -> None:
    assert re.fullmatch(expected, naming.stateful_set(name, zone))


@given(st.sets(zone_names, min_size=2, max_size=2))
def test_two_zones_have_two_names(zones: set[str]) -> None:
    assert len({naming.stateful_set("demo", zone) for zone in zones}) == 2


def test_names_of_claims_and_bookies() -> None:
    assert naming.claim("journal-1", "demo-bookie-0") == "journal-1-demo-bookie-0"
    found = build(cluster(), BuildContext()).desired()
    assert found.bookie_id("demo-bookie-2") == "demo-bookie-2.demo-bookie.storage.svc:3181"
    assert found.bookie_id("demo-bookie-77") == "demo-bookie-77.demo-bookie.storage.svc:3181"


_PARTS = (
    "",
    "-bookie",
    "-backup",
    "-admin",
    "-metadata",
    "-client",
    "-gateway",
    "-autorecovery",
    "-bookie-metadata",
    "-x",
)
_ZONES = ("bookie", "metadata", "x", "x-bookie", "bookie-x", "x-bookie-metadata", "Bookie", "tls", "eu-1a")


def _names_of(name: str) -> set[tuple[str, str]]:
    """Kind and name of everything that a cluster may consist of."""
    made = set()
    shapes: tuple[dict[str, object], ...] = (
        {"placement": {"zones": [{"name": zone} for zone in _ZONES]}, "replicas": len(_ZONES)},
        {"metadataService": {"type": "Embedded"}},
        {"gateway": {"enabled": True}, "tls": {"enabled": True, "issuerRef": {"name": "ca"}}},
        {"backup": {"schedule": "@daily"}},
        {"monitoring": {"podMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}}},
    )
    for shape in shapes:
        objects = build(cluster({**MINIMAL, **shape}, name=name), EVERY_KIND)
        manifests = [*objects.objects.values(), objects.destroy_job, *objects.budgets.values()]
        made |= {(each["kind"], each["metadata"]["name"]) for each in manifests}
        made |= {("Secret", each) for each in objects.issued}
    secrets = (
        naming.admin_token,
        naming.client_token,
        naming.admin_certificate,
        naming.admin_issued,
        naming.admin_authority,
    )
    return made | {("Secret", of(name)) for of in secrets}


@pytest.mark.parametrize("zone", ["bookie", "eu-metadata-1", "Metadata_A"])
def test_a_stateful_set_keeps_the_name_that_another_release_gave_it(zone: str) -> None:
    earlier = {"eu-metadata-1": "a-bookie-eu-metadata-1", "bookie": "a-bookie-bookie"}.get(zone)
    earlier = earlier or "a-bookie-metadata-a-" + naming.stateful_set("a", zone).rpartition("-")[2]
    assert naming.stateful_set("a", zone) != earlier
    assert naming.stateful_set("a", zone, {earlier: 2}) == earlier


def test_no_two_clusters_have_a_name_in_common() -> None:
    found = {f"a{part}": _names_of(f"a{part}") for part in _PARTS}
    for first, second in itertools.combinations(found, 2):
        assert not found[first] & found[second], (first, second)
