"""The streaming half of the source: offsets, admission control, and the reader that Spark drives."""
