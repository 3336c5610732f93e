"""Writing a ledger: the add state machine, the window, ensemble change, close."""
