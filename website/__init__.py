"""The documentation site: what `make docs` generates for it, and the tree that `make site` builds it from."""
