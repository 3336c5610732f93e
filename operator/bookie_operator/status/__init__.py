"""What is told: the status with its conditions, and events."""
