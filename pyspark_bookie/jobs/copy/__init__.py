"""`copy`: ledgers from one cluster to another."""
