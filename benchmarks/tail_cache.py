"""Many readers of one process follow one stream: what the shared tail saves (`Streams(tail_cache_bytes=...)`).

Three bookies on this machine; entries of 1 KB are appended while 1, 4 and 16 readers follow the end. Printed for each:
CPU seconds of this process and of the bookies, and reads that the bookies answered, all for 1,000 entries written.

    .venv/bin/python -m benchmarks.tail_cache [--entries 20000]
"""

from __future__ import annotations

import argparse
import asyncio
import re
import tempfile
import time
import urllib.request
from contextlib import aclosing
from pathlib import Path

import psutil

from bookie_client import Client
from bookie_client.streams import Streams, StreamSettings
from bookie_pod.node.standalone.cluster import StandaloneCluster

READERS = (1, 4, 16)
CACHE_BYTES = 8 * 1024 * 1024
_READS = re.compile(
    r'^bookkeeper_server_(?:READ_ENTRY|BATCH_READ)_REQUEST_count\{.*success="true"[^}]*\} (\d+)', re.MULTILINE
)


def _reads(cluster: StandaloneCluster) -> int:
    total = 0
    for bookie in cluster.bookies.values():
        with urllib.request.urlopen(f"http://127.0.0.1:{bookie.http_port}/metrics", timeout=30) as answer:
            total += sum(int(count) for count in _READS.findall(answer.read().decode()))
    return total


def _cpu(cluster: StandaloneCluster) -> float:
    times = [psutil.Process(bookie.pid).cpu_times() for bookie in cluster.bookies.values()]
    return sum(each.user + each.system for each in times)


async def _measure(cluster: StandaloneCluster, readers: int, cache: int, entries: int) -> tuple[float, float, float]:
    async with Client(cluster.metadata_service_uri) as client, Client(cluster.metadata_service_uri) as writing:
        name = f"s-{readers}-{cache}"
        streams = Streams(client, tail_cache_bytes=cache)
        await streams.create(name, StreamSettings(ensemble=3, write_quorum=2, ack_quorum=2))
        followers = [asyncio.create_task(_follow(streams, name, entries)) for _ in range(readers)]
        await asyncio.sleep(1)
        reads, cpu, own = _reads(cluster), _cpu(cluster), time.process_time()
        async with Streams(writing).writer(name) as writer:
            for _ in range(entries // 100):
                await writer.append_many([b"x" * 1024] * 100)
        await asyncio.gather(*followers)
        thousands = entries / 1000
        own = time.process_time() - own
        return own / thousands, (_cpu(cluster) - cpu) / thousands, (_reads(cluster) - reads) / thousands


async def _follow(streams: Streams, name: str, entries: int) -> None:
    left = entries
    async with aclosing(streams.reader(name).tail("earliest")) as found:
        async for _ in found:
            left -= 1
            if not left:
                return


async def main(entries: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with StandaloneCluster(Path(folder), http_port=0) as cluster:
            print("readers  cache   client CPU s  bookies CPU s  reads   (for 1,000 entries)")
            for readers in READERS:
                for cache in (0, CACHE_BYTES):
                    own, cpu, reads = await _measure(cluster, readers, cache, entries)
                    shown = f"{cache >> 20} MiB" if cache else "none"
                    print(f"{readers:7}  {shown:6}  {own:12.3f}  {cpu:13.3f}  {reads:6.0f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=20_000)
    asyncio.run(main(parser.parse_args().entries))
