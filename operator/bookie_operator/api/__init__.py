"""The two interfaces that the operator speaks: Kubernetes' API server, and the admin API of the cluster's pods.

A pod's own spec tells what it speaks: one with the volume `podkeeper-admin-tls` serves HTTPS with that Secret, one
without it HTTP. So a cluster whose template is held, or is being rolled, is reached bookie by bookie, and no
connection falls back to HTTP. The port is named `https` or `http` accordingly, which is what the PodMonitor goes by.
Bookies tell with their registration (extension `tls` of the HTTP endpoint), which is what jobs go by.
"""
