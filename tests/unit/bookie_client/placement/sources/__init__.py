"""Sources of network locations."""
