"""Which flow an operation belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bookie_operator.crds.cluster_status import OperationType
from bookie_operator.planner.flows import Flow, delete, scale_up

FLOWS: Final[Mapping[OperationType, Flow]] = {
    OperationType.SCALE_UP: scale_up,
    OperationType.DELETE: delete,
}
