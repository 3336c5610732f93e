"""One pass over a cluster: look, decide, do at most one thing, tell."""
