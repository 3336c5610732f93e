"""The planner: pure functions from a snapshot of the world to one decision."""
