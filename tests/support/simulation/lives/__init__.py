"""Ledgers whose ids are used again: writers, closers, recoverers, readers and deleters on a few ids, and the judge that
holds each life against its own promises. Nothing of one life may change, end, or be read as, another."""
