"""Kubernetes in one process: an API server for the kinds that the operator uses, the controllers it relies on, and the
bookies that its pods would run. Flows that take minutes on machines take seconds here."""
