"""The execution of plans: one function for each action that a plan may decide."""
