"""What source, sink and jobs share: options, errors, clients, secrets, rates."""
