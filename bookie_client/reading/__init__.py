"""Reading a ledger: replica order and fall-over, pipelined ranges, the reader's handle."""
