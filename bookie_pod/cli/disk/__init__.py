"""`bookie disk`: looking at, checking and mending the directories of a stopped bookie."""
