"""`import`: what `export` has written, back into a cluster."""
