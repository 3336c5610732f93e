"""Where entries are and which ledgers exist: two ordered key-value stores per ledger directory."""
