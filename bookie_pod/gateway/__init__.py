"""The gateway: `LedgerService` over gRPC, for languages that have no client of their own.

    service.py    the calls: what is checked, limited and told of every one of them
    appending.py  one Append call: batches in, acknowledgements out; bytes of appends under way, all calls together
    reading.py    Read and Tail: entries as responses of a bounded size
    writers.py    the writers that are kept between calls, and their end
    messages.py   requests, metadata and errors between gRPC and the client
    gateway.py    the whole, as the node starts and stops it

It is a client of the cluster like any other: it knows nothing of the bookie whose process it shares, and reaches it
over its port. gRPC in Python costs about 150 microseconds a message, whatever its size, so everything moves in batches,
and nothing here is done entry by entry but what the client does.

`LedgerService` (`bookie_protocol/ledger_service/ledger_service.proto`) on the gRPC port of every pod. It shares the
node's loop and metadata service, knows nothing of the bookie, and reaches it as any client does: over a connection,
which goes through the process and not through the kernel (`node.own_connector`) unless bookies serve TLS. What it
carries are the protocol's frames, or in their place, for many adds, what the frames would say. The node starts it
once the bookie serves and passes it to the gRPC server as a `GrpcService` (names, limits, `add_to`, `stop`).

- One `Append` call is one writer: batches in, one acknowledgement for all that was acknowledged meanwhile out. What
  holds a client back is the writer's window, then `gatewayMaxPendingBytes` over all calls; then the stream is not
  read.
- `node.processes.gateway` is the same without a bookie (`bookie gateway`): an interpreter of its own, probes and
  metrics over HTTP, and an end when its session cannot be renewed (`node.processes.service`, which
  auto-recovery shares).
- Every writer ends with its ledger closed: by its client, with its call, when idle, or with the gateway
  (`writers.OpenWriters`). Only a metadata service that does not answer leaves one open, for a recovery.
- Errors keep their names: `google.rpc.ErrorInfo.reason` in the status details; codes in `gateway.messages`.
- The port may have TLS, client certificates and tokens (`server.grpc.tls`). `server.access` decides for HTTP and gRPC
  who a caller is and which roles it has (`roles`); each route (`server.http.api.table`) and each call
  (`gateway.gateway.ROLES`) names the one that it needs, and `audit` has a line for each change and each refusal. The
  gateway is off by default where bookies demand client certificates or logins and this port neither certificates nor
  tokens.
"""
