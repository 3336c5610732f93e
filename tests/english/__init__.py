"""How plain the English of the product is: figures that may only fall.

`python -m tests.english` prints them beside their limits. `--list FIGURE` prints each place, and `--write` lowers the
limits to what it finds. `tests/unit/test_english.py` holds the tree to the limits, which are in `limits.json`.
"""
