"""What clients ask for is what is served: paths, methods and answers."""

from __future__ import annotations

import pytest

from bookie_pod.admin.routes import RESOURCES
from bookie_pod.server.http.routes import STATE
from bookie_protocol.admin_api import autorecovery, bookie, cluster, decommission, gc, integrity
from bookie_protocol.admin_api.bodies import NOTHING, Route

ROUTES = [
    route
    for module in (autorecovery, bookie, cluster, decommission, gc, integrity)
    for route in vars(module).values()
    if isinstance(route, Route) and route is not bookie.CONFIG  # of which Apache's bookies tell more than texts
]
SERVED = {
    (operation.method, resource.path): operation
    for resource in (*RESOURCES, STATE)
    for operation in resource.operations
}


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_an_answer_is_of_the_type_that_is_served(route: Route[object]) -> None:
    served = [answer.type for answer in SERVED[route.method, route.path].answers if answer.status == 200]
    assert route.answer is NOTHING or route.answer in served
