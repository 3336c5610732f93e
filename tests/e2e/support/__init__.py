"""What the end-to-end tests share: the cluster, its faults, the workload, and judges that ask nobody but the source."""
