"""The auditor; see `auditor.auditor`."""
