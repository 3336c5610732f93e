"""The charts, as far as they need neither Helm nor a cluster."""
