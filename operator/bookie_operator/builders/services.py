"""Services: names of the bookies, and one address for clients that speak gRPC or HTTP.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from typing import Any

from bookie_operator.builders import naming
from bookie_operator.builders.common import manifest, selector
from bookie_operator.builders.container import http_port
from bookie_operator.builders.hashing import Manifest
from bookie_operator.world.model import ClusterView


def _port(name: str, port: int) -> dict[str, Any]:
    return {"name": name, "port": port, "targetPort": name, "protocol": "TCP"}


def _http(cluster: ClusterView) -> dict[str, Any]:
    """The port by number: while bookies change from HTTP to HTTPS, or back, it has one name here and another there."""
    port = http_port(cluster)
    return {**_port(port["name"], naming.HTTP_PORT), "targetPort": naming.HTTP_PORT}


def headless_service(cluster: ClusterView) -> Manifest:
    """Gives each pod its name, which is part of its bookie id. Also before it is ready: bookies that start, and those
    that look after a cluster with an absent metadata service, have to be found."""
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": selector(cluster, naming.BOOKIE),
        "ports": [
            _port("bookie", naming.BOOKIE_PORT),
            _port("grpc", naming.GRPC_PORT),
            _http(cluster),
        ],
    }
    return manifest(cluster, "v1", "Service", naming.bookies(cluster.name), naming.BOOKIE, {"spec": spec})


def gateway_service(cluster: ClusterView) -> Manifest | None:
    """The gateways that run by themselves, and no bookie. None: `spec` wants none."""
    if not cluster.spec.gateway.enabled:
        return None
    spec = {
        "type": "ClusterIP",
        "selector": selector(cluster, naming.GATEWAY),
        "ports": [_port("grpc", naming.GRPC_PORT)],
    }
    return manifest(cluster, "v1", "Service", naming.gateway(cluster.name), naming.GATEWAY, {"spec": spec})


def client_service(cluster: ClusterView) -> Manifest:
    """Any bookie that serves: for the gateway and the admin API. Not for the BookKeeper protocol, whose clients choose
    each bookie themselves."""
    spec = {
        "type": "ClusterIP",
        "selector": selector(cluster, naming.BOOKIE),
        "ports": [_port("grpc", naming.GRPC_PORT), _http(cluster)],
    }
    return manifest(cluster, "v1", "Service", naming.client_service(cluster.name), naming.BOOKIE, {"spec": spec})
