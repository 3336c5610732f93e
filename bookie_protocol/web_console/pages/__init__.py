"""One module for each view. A page is a function of what a `View` gives it; it asks, and returns HTML."""
