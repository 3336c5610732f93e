"""The observed state: everything that a decision may depend on, read again in every pass."""
