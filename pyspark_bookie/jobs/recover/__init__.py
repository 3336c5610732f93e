"""New copies of what bookies lost, or of all that some bookies hold, at the scale of a cluster."""
