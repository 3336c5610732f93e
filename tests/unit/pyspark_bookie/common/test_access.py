"""Where ledgers go and where a task stands, as options of the source, the sink and the jobs."""

from __future__ import annotations

import pickle
import re

import pytest

from bookie_client.placement.options import PlacementOptions
from pyspark_bookie.common import clients
from pyspark_bookie.common.access import LOCATION_VARIABLE, AccessOptions, policy_name
from pyspark_bookie.common.errors import PodkeeperSparkError
from pyspark_bookie.common.options import parse
from pyspark_bookie.jobs.framework.arguments import CommonArguments
from pyspark_bookie.jobs.framework.tasks import TaskEnvironment
from pyspark_bookie.sink.options import SinkOptions
from pyspark_bookie.source.options import SourceOptions

URI = "embedded://127.0.0.1:1/ledgers"
NEEDED = {AccessOptions: {}, SourceOptions: {"scope": "all"}, SinkOptions: {"stream": "orders"}}


@pytest.fixture(autouse=True)
def nowhere(monkeypatch):
    monkeypatch.delenv(LOCATION_VARIABLE, raising=False)


@pytest.fixture
def asked(monkeypatch):
    """The placement of each client that is asked for."""
    found = []
    monkeypatch.setattr(clients, "client", lambda uri, options, placement: found.append(placement))
    return found


def parsed(of=AccessOptions, **raw):
    return parse({"metadataServiceUri": URI, **NEEDED[of], **raw}, of)


@pytest.mark.parametrize("of", list(NEEDED))
def test_they_reach_the_client(asked, of):
    parsed(of).client()
    raw = {"placement": "Zone-Aware", "networkLocation": " /zone-a ", "placement.minzones": "3"}
    parsed(of, **raw, **{"placement.enforce_zones": "false"}).client()
    zoned = PlacementOptions(policy="zone-aware", local_location="/zone-a", min_zones=3, enforce_zones=False)
    assert asked == [PlacementOptions(), zoned]


def test_they_reach_the_clients_of_a_jobs_tasks_limited_or_not(asked):
    args = CommonArguments(metadata=URI, option=("placement=zone-aware", "networkLocation=/zone-b"))
    for rate in (None, 1e6):
        TaskEnvironment(pickle.loads(pickle.dumps(args.access())), rate).client()
    assert asked == [PlacementOptions(policy="zone-aware", local_location="/zone-b")] * 2


def test_a_task_stands_where_its_own_environment_says_and_not_where_the_drivers_does(asked, monkeypatch):
    monkeypatch.setenv(LOCATION_VARIABLE, "/driver")
    sent = pickle.dumps([parsed(), parsed(networkLocation="/given")])
    monkeypatch.setenv(LOCATION_VARIABLE, "/task")
    for options in pickle.loads(sent):
        options.client()
    monkeypatch.setenv(LOCATION_VARIABLE, "")  # as of a label that the pod does not have
    parsed().client()
    assert [each.local_location for each in asked] == ["/task", "/given", None]


def test_names_of_regions_have_commas_in_between(asked):
    parsed(placement="region-aware", **{"placement.regionsToWrite": "east, west"}).client()
    assert asked[0].regions_to_write == ("east", "west")


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        ({"placement": "zoneaware"}, "placement=zoneaware"),
        ({"placement": "x"}, "region-aware"),
        ({"placement": "local"}, "placement=local"),
        ({"placment": "random"}, "placment"),
        ({"networklocations": "/a"}, "networkLocation"),
        ({"placement.minZone": "2"}, "placement.minzone: "),
        ({"placement.policy": "random"}, "placement.policy: "),
        ({"placement.localLocation": "/a"}, "placement.locallocation"),
        ({"placement.minZones": "two"}, "placement.minzones=two"),
        ({"placement.minZones": "4"}, "minNumZonesPerWriteQuorum is 4"),
        ({"placement.topologyRefresh": "0"}, "topology_refresh"),
    ],
)
def test_what_cannot_be_is_told(raw, told):
    with pytest.raises(PodkeeperSparkError, match=re.escape(told)):
        parsed(**{"placement": "zone-aware", **raw}).client()


def test_each_policy_that_is_offered_can_be_had():
    for name in ("random", "rack-aware", "region-aware", "zone-aware"):
        assert policy_name(name) == name
        assert parsed(placement=name).placement_options().policy == name
