"""The objects of a cluster, made of its `spec`: pure functions."""
