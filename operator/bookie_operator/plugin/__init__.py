"""`kubectl bookie`: clusters of bookies for people at a terminal, through Kubernetes' API server alone."""
