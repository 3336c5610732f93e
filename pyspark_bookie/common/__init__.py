"""The common part of source, sink and jobs: options, errors, clients, secrets, rates."""
