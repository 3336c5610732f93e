"""The bookies of the cluster as this one sees them."""

from __future__ import annotations

from typing import Final

from bookie_pod.admin.ports import Space
from bookie_pod.roles import Role
from bookie_pod.server.http.api.call import Call
from bookie_pod.server.http.api.context import Context
from bookie_pod.server.http.api.replies import Json, Reply, Text
from bookie_pod.server.http.api.table import Answer, Group, Kind, Operation, Parameter, Resource
from bookie_protocol.admin_api.cluster import ClusterInfo

_UNITS: Final = ("", "KB", "MB", "GB", "TB")
_BASE: Final = "/api/v1/bookie"


async def _cluster_info(context: Context, call: Call) -> Reply:
    state = await context.admin.cluster.state()
    return Json(
        ClusterInfo(
            auditor_elected=state.auditor_id is not None,
            auditor_id=state.auditor_id or "",
            cluster_under_replicated=state.is_under_replicated,
            ledger_replication_enabled=state.is_replication_enabled,
            total_bookies_count=state.total,
            writable_bookies_count=state.writable,
            readonly_bookies_count=state.read_only,
            unavailable_bookies_count=max(0, state.total - state.writable - state.read_only),
        )
    )


async def _list_bookies(context: Context, call: Call) -> Reply:
    cluster = context.admin.cluster
    bookies = await cluster.bookies(read_only=call.parameters["type"] == "ro")
    return Json(await cluster.hosts(bookies) if call.flag("print_hostnames") else dict.fromkeys(bookies))


async def _list_bookie_info(context: Context, call: Call) -> Reply:
    found = await context.admin.cluster.space()
    if not found:
        return Text("Not found any Bookie info.", 404)
    answer = {bookie: f": {{{_space(space)}}}," for bookie, space in found.items()}
    whole = Space(sum(space.total for space in found.values()), sum(space.free for space in found.values()))
    return Json(answer | {"ClusterInfo: ": f"{{{_space(whole)}}}"})


def _space(space: Space) -> str:
    return f"Free: {space.free}{readable(space.free)}, Total: {space.total}{readable(space.total)}"


def readable(nbytes: int) -> str:
    """`(55.527GB)`: units of 1000, up to three decimals, truncated; nothing below 1000."""
    unit = min(len(_UNITS) - 1, (len(str(nbytes)) - 1) // 3)
    if unit == 0:
        return ""
    whole, rest = divmod(nbytes // 1000 ** (unit - 1), 1000)
    decimals = f"{rest:03}".rstrip("0")
    return f"({whole}{'.' if decimals else ''}{decimals}{_UNITS[unit]})"


def _get(path: str, operation: Operation) -> Resource:
    refusal = Text("Not found method. Should be GET method", 404)
    return Resource(f"{_BASE}/{path}", Group.ADMIN, (operation,), refusal, own=False)


RESOURCES: Final = (
    _get(
        "cluster_info",
        Operation("GET", Role.VIEWER, "The cluster in numbers", _cluster_info, (Answer("Numbers.", type=ClusterInfo),)),
    ),
    _get(
        "list_bookies",
        Operation(
            "GET",
            Role.VIEWER,
            "The registered bookies",
            _list_bookies,
            (Answer("Host, or null, by bookie id.", type=dict[str, str | None]),),
            parameters=(
                Parameter("type", Kind.TEXT, "Writable ones, or read-only ones.", "rw", choices=("rw", "ro")),
                Parameter("print_hostnames", Kind.FLAG, "Tell the hosts too.", False),
            ),
        ),
    ),
    _get(
        "list_bookie_info",
        Operation(
            "GET",
            Role.VIEWER,
            "Space of every bookie, each asked now",
            _list_bookie_info,
            (
                Answer("A text by bookie id, and one of the whole cluster.", type=dict[str, str]),
                Answer("No bookie answered.", 404),
            ),
        ),
    ),
)
