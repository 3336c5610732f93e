"""What is to be done about a BookieJob: beside, and never inside, the one operation at a time of its cluster."""
