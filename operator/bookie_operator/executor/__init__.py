"""What is done: one function for each action that a plan may decide."""
