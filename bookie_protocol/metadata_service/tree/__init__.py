"""Apache's metadata layout over any tree of versioned nodes: written once, shared by all drivers."""
