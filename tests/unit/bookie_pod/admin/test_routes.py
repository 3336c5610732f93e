"""What clients ask for is what is served."""

from __future__ import annotations

from bookie_pod.admin.routes import RESOURCES
from bookie_pod.server.http.routes import STATE
from bookie_protocol.admin_api import autorecovery, bookie, cluster, decommission, gc, integrity, streams
from bookie_protocol.admin_api.bodies import Route

ROUTES = [
    route
    for module in (autorecovery, bookie, cluster, decommission, gc, integrity, streams)
    for route in vars(module).values()
    if isinstance(route, Route)
]


def test_every_route_is_served_once() -> None:
    served = [operation.route for resource in (*RESOURCES, STATE) for operation in resource.operations]
    assert len(served) == len(ROUTES)
    assert all(route in served for route in ROUTES)


def test_a_resource_is_one_path_and_no_method_is_there_twice() -> None:
    for resource in (*RESOURCES, STATE):
        assert {operation.route.path for operation in resource.operations} == {resource.path}
        methods = [operation.route.method for operation in resource.operations]
        assert len(methods) == len(set(methods)), resource.path
    paths = [resource.path for resource in (*RESOURCES, STATE)]
    assert len(paths) == len(set(paths))
