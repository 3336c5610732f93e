"""What makes a release, and what checks that one agrees with itself."""
