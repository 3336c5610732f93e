"""Clusters to place on, and what brute force says about them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, product
from random import Random

from hypothesis import strategies as st

from bookie_client.distribution import Quorums
from bookie_client.placement.policy import ClusterView, EnsembleRequest, Placement, PlacementPolicy, ReplacementRequest
from bookie_client.placement.topology import Location, Topology
from bookie_protocol.errors import MetadataNotFound
from bookie_protocol.metadata_service.service_info import BOOKIE_RPC, BookieServiceInfo, Endpoint

Labels = tuple[Location, ...]


def cluster_of(locations: Mapping[str, str | None], *, local: Location | None = None, **more) -> ClusterView:
    """Bookie id -> `/region/rack`; None: not known. All writable unless `more` says otherwise."""
    known = {b: tuple(place.strip("/").split("/")) for b, place in locations.items() if place is not None}
    return ClusterView(**{"writable": frozenset(locations), "topology": Topology(known, local), **more})


def racks(**members: int) -> dict[str, str | None]:
    """`racks(r1=2, r2=1)`: bookies r1-0, r1-1, r2-0."""
    return {f"{rack}-{i}": f"/{rack}" for rack, count in members.items() for i in range(count)}


def choose(policy: PlacementPolicy, cluster: ClusterView, quorums: tuple[int, int, int], seed: int = 1) -> Placement:
    return policy.new_ensemble(EnsembleRequest(quorums=Quorums(*quorums), cluster=cluster, random=Random(seed)))


def replacing(
    cluster: ClusterView, ensemble: Sequence[str], failed: Sequence[int], quorums: tuple[int, int, int], seed: int = 1
) -> ReplacementRequest:
    return ReplacementRequest(
        ensemble=tuple(ensemble),
        failed={position: ensemble[position] for position in failed},
        quorums=Quorums(*quorums),
        cluster=cluster,
        random=Random(seed),
    )


@st.composite
def sizes(draw, most: int = 5, least: int = 1) -> tuple[int, int, int]:
    ensemble = draw(st.integers(least, most))
    write = draw(st.integers(min(2, least), ensemble))
    return ensemble, write, draw(st.integers(write // 2, write)) if write > 1 else 1


@st.composite
def clusters(draw) -> ClusterView:
    """Up to nine bookies in up to four racks of up to two regions; some unknown, read-only, draining, failing."""
    places = [None, "/east/a", "/east/b", "/west/a", "/west/b"]
    chosen = draw(st.lists(st.sampled_from(places), min_size=1, max_size=9))
    locations = {f"b{i}": place for i, place in enumerate(chosen)}
    some = st.sets(st.sampled_from(sorted(locations)))
    read_only, excluded = frozenset(draw(some)), draw(some)
    return cluster_of(
        locations,
        local=draw(st.sampled_from([None, ("east", "a"), ("east", "zz"), ("north", "a")])),
        writable=frozenset(locations) - read_only,
        read_only=read_only,
        quarantined=frozenset(draw(some)),
        unreachable=frozenset(draw(some)),
        excluded=dict.fromkeys(excluded, "draining"),
    )


def write_sets(quorums: tuple[int, int, int]) -> list[list[int]]:
    ensemble, write, _ = quorums
    return [[(start + i) % ensemble for i in range(write)] for start in range(ensemble)]


def spans(labels: Sequence[object], quorums: tuple[int, int, int], minimum: int) -> bool:
    """Whether each write set has `minimum` different ones of these."""
    return all(len({labels[i] for i in one}) >= min(minimum, quorums[1]) for one in write_sets(quorums))


def survives(labels: Sequence[object], quorums: tuple[int, int, int], regions: int) -> bool:
    """Whether no ack quorum of any write set lies in fewer than `regions` of these."""
    return all(
        len({labels[i] for i in acks}) >= regions
        for one in write_sets(quorums)
        for acks in combinations(one, quorums[2])
    )


def label_sequences(fixed: Sequence[Location | None], free: Counter[Location]) -> Iterator[Labels]:
    """Every way to fill the positions that are None from what is free."""
    holes = [i for i, label in enumerate(fixed) if label is None]
    for filling in product(sorted(free), repeat=len(holes)):
        if not Counter(filling) - free:
            labels = list(fixed)
            for position, label in zip(holes, filling, strict=True):
                labels[position] = label
            yield tuple(labels)


def possible(
    fixed: Sequence[Location | None], free: Counter[Location], rule: Callable[[Sequence[Location]], bool]
) -> bool:
    """Whether some way to fill the holes obeys."""
    return any(rule(labels) for labels in label_sequences(fixed, free))


class Infos:
    """The registrations of bookies on these hosts, and what is asked of them."""

    def __init__(self, **hosts: str) -> None:
        self.hosts = {name.replace("_", "-"): host for name, host in hosts.items()}
        self.properties: dict[str, dict[str, str]] = {}
        self.failures: dict[str, Exception] = {}
        self.asked: list[str] = []
        self.racks = b""

    async def rack_assignments(self) -> bytes:
        return self.racks

    async def info(self, bookie_id: str) -> BookieServiceInfo:
        self.asked.append(bookie_id)
        if bookie_id in self.failures:
            raise self.failures[bookie_id]
        if bookie_id not in self.hosts:
            raise MetadataNotFound(f"bookie {bookie_id} is not registered")
        endpoint = Endpoint("bookie", self.hosts[bookie_id], 3181, BOOKIE_RPC)
        return BookieServiceInfo((endpoint,), self.properties.get(bookie_id, {}))
