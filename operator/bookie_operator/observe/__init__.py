"""What is: everything that a decision may depend on, read anew in every pass."""
