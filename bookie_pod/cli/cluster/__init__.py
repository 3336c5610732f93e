"""`bookie cluster`: commands for a whole cluster; see `commands`."""
