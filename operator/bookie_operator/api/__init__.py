"""The two interfaces that the operator speaks: Kubernetes' API server, and the admin API of the cluster's pods."""
