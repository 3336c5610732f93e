"""The gateway: `LedgerService` over gRPC, for languages that have no client of their own.

    service.py    the calls: the checks, limits and records of all of them
    appending.py  one Append call: batches in, acknowledgements out; bytes of appends under way, all calls together
    reading.py    Read and Tail: entries as responses of a bounded size
    writers.py    the writers that are kept between calls, and their end
    messages.py   requests, metadata and errors between gRPC and the client
    gateway.py    the whole, as the node starts and stops it

It is a client of the cluster like any other, in a process of its own (`node.processes.gateway`): by itself, in the pod
of a bookie, or as the child of one (`node.gateway_beside`). gRPC in Python costs about 150 microseconds a message,
whatever its size, so everything moves in batches, and nothing here is done entry by entry but what the client does.

`LedgerService` (`bookie_protocol/ledger_service/ledger_service.proto`) on the gRPC port of every pod. The process
passes it to the gRPC server as a `GrpcService` (names, limits, `add_to`, `stop`).

- One `Append` call is one writer: batches in, one acknowledgement for all that was acknowledged meanwhile out. What
  holds a client back is the writer's window, then `gatewayMaxPendingBytes` over all calls; then the stream is not
  read.
- The process ends when its session cannot be renewed (`node.processes.service`, which auto-recovery shares), and its
  supervisor starts it again.
- Every writer ends with its ledger closed: by its client, with its call, when idle, or with the gateway
  (`writers.OpenWriters`). Only a metadata service that does not answer leaves one open, for a recovery.
- Errors keep their names: `google.rpc.ErrorInfo.reason` in the status details; codes in `gateway.messages`.
- The port may have TLS, client certificates and tokens (`server.grpc.tls`). `server.access` decides for HTTP and gRPC
  who a caller is and which roles it has (`roles`); each route (`server.http.api.table`) and each call
  (`gateway.gateway.ROLES`) names the one that it needs, and `audit` has a line for each change and each refusal. The
  gateway is off by default where bookies demand client certificates or logins and this port neither certificates nor
  tokens.
"""
