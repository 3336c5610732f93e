"""What commands that are the main process of a container have in common: limits, and last words."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec

Parameters = ParamSpec("Parameters")


def main_process(command: Callable[Parameters, Any]) -> Callable[Parameters, Any]:
    """An error that ends the command is told to Kubernetes too. Others, such as those that a probe or a hook runs in
    the same container, must not: the message would be taken for the word of the main process."""

    @functools.wraps(command)
    def telling(*arguments: Parameters.args, **options: Parameters.kwargs) -> Any:
        from bookie_pod.node.processes.descriptors import raise_descriptor_limit
        from bookie_protocol.errors import PodkeeperError

        raise_descriptor_limit()
        try:
            return command(*arguments, **options)
        except PodkeeperError as error:
            from bookie_pod.node.processes.until_signal import tell_kubernetes

            tell_kubernetes(" ".join(str(error).split()))
            raise

    return telling
