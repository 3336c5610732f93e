"""The metadata service of a cluster: who is there, which ledgers exist, what has lost copies.

`MetadataNotFound` is the service's word that something is not there; `MetadataUnavailable` says nothing about it.
Short losses of the connection are ridden out within the deadline of a call, and a repeated write recognises its own
first try. `watch` returns a `Subscription`: `async for` over snapshots of which only the newest is kept. `ranges`
covers all ids from 0 to 2^63-1 without a gap, or raises. Watches of one ledger are shared: any number of readers cost
one watch.

Apache's layout is written once (`tree/`), over a small tree of versioned nodes (`tree.nodes.NodeTree`). Drivers offer
that tree: `zookeeper/` (kazoo), `etcd/`, `oxia/`, and `embedded/` (RocksDB, owned by one process and served to others
over gRPC). What is opened with a URI of ZooKeeper goes on in Oxia when Pulsar migrates the metadata (`migrating/`). The
pod opens the service with `bookie_pod.node.metadata.open_metadata`, which knows time-outs and logins.
"""
