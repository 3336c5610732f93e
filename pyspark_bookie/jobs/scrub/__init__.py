"""Every copy of every entry is read, bookie by bookie, and held against its digest and the other copies."""
