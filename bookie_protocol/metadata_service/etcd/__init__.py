"""etcd as the metadata service of production: `etcd.proto` (what is said), `connection` (to whom, as whom, and what the
errors mean), `keys` (where nodes are), `operations`, `watches`,
`tree` (the driver)."""
