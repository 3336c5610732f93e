"""The ledgers of one bookie: who may write, what is fenced, how far each is confirmed, and who waits for it."""
