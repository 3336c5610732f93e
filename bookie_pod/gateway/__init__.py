"""The gateway: `LedgerService` over gRPC, for languages that have no client of their own.

    service.py    the calls: what is checked, limited and told of every one of them
    appending.py  one Append call: batches in, acknowledgements out
    reading.py    Read and Tail: entries as responses of a bounded size
    writers.py    the writers that are kept between calls, and their end
    budget.py     bytes of appends that may be under way, all calls together
    messages.py   requests and metadata between protobuf and the client
    status.py     errors as gRPC statuses
    gateway.py    the whole, as the node starts and stops it

It is a client of the cluster like any other: it knows nothing of the bookie whose process it shares, and reaches it
over its port. gRPC in Python costs about 150 microseconds a message, whatever its size, so everything moves in batches,
and nothing here is done entry by entry but what the client does.
"""
