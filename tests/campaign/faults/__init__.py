"""What happens to a cluster. Each kind of fault is a function that does it, holds it for a while and ends it."""
