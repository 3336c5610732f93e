"""Pulsar's schemas of topics: where they are stored, and values as JSON by them (`pulsarSchema=json`)."""
