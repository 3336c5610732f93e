"""Authentication providers for connections between clients and bookies; what they implement is `wire.auth`."""
