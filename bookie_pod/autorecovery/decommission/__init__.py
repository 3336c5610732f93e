"""Taking a bookie out of the cluster: plan, drain, proof, cookie; and the recovery of lost bookies."""
