"""Who takes the space, what of it is garbage, and when it will be used up."""
