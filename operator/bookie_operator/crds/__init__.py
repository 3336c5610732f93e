"""The custom resources: their typed source, and the definitions that are made of it."""
