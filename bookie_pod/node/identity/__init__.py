"""The identity of a bookie: its id, its cookies, the directories that are its own, and the life that it is in.

bookie_id      what its id is made of                     cookies       who may use these directories
cookie_check   cookies on disks and in the metadata service, held against each other
ownership      directories are locked, and none is named twice
published      what it tells clients with its registration, and people who ask before it starts
earlier_life   ledgers of an earlier bookie of its id     leaving       a decommission of it that is under way
rename         another id for the same disks              disk_age      directories that were set back
"""
