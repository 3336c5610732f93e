"""The world: one snapshot of a cluster, and how it is read."""
