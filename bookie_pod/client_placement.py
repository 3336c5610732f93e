"""Where the clients of a pod (gateway, auto-recovery) put ledgers and copies, from the pod's configuration.

Keys that nobody set are left to the client's own defaults. For processes with a configuration; any thread.

Source: reference client protocol, section 16.
"""

from __future__ import annotations

from bookie_client.placement.java_keys import PLACEMENT_KEYS, placement_options
from bookie_client.placement.options import PlacementOptions
from bookie_pod.config.model import BookieConfig, effective
from bookie_protocol.errors import BadRequest, InvalidConfiguration


def client_placement(config: BookieConfig, *, local_bookie: str | None = None) -> PlacementOptions:
    """The options that the configuration's keys of placement describe.

    `local_bookie`: the bookie of this process, for the policy that uses no other. `InvalidConfiguration`: an unknown
    class, or keys that make no sense together.
    """
    texts = {
        declared.name: text
        for declared, text in effective(config)
        if declared.name in PLACEMENT_KEYS and declared.name in config.set_keys
    }
    try:
        return placement_options(texts, local_bookie=local_bookie)
    except BadRequest as error:
        raise InvalidConfiguration(str(error)) from error
