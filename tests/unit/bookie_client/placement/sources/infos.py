"""What bookies publish, in a dict."""

from bookie_protocol.errors import MetadataNotFound
from bookie_protocol.metadata_service.service_info import BOOKIE_RPC, BookieServiceInfo, Endpoint


class Infos:
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
