"""The tree `underreplication` over any driver: marks, locks, settings and the auditor's election."""
