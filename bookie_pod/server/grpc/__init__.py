"""gRPC: the standard health service, and reflection.

    start.py    what the node calls: imports grpc aside, then starts the server
    server.py   the server, and the health of the node
    tls.py      its certificates, taken up when they are renewed
    access.py   who may call, and connections of those who do not
    receiving.py  how messages are received: with room for each

grpc is imported only once the bookie serves: it takes longer to load than the bookie to start.
"""
