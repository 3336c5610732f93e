"""What ledgers name some bookies, or break a placement policy: from metadata alone."""
