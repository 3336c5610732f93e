"""etcd as the metadata service of production.

etcd.proto      the messages
connection.py   the connection, the login, and the meaning of errors
keys.py         the keys of nodes                operations.py   the parts of transactions
watches.py      watches                          tree.py         the driver
"""
