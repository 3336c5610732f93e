"""The log records in the entries of a DistributedLog log (`decode=dlog`)."""
