"""What failed attempts and dead writers left behind, and its removal."""
