"""System calls of a process that fail, come short or take long, the clock that jumps, and the loss of power."""
