"""The messages in the entries of a Pulsar topic (`decode=pulsar`)."""
