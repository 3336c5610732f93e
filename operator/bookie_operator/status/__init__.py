"""The reports of the operator: the status with its conditions, and events."""
