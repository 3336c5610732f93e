"""Placement: which bookies a new ledger, or a replacement, goes to.

Policies are pure; the same view and seed give the same choice. Rules hold in every write set, not only in the
ensemble. Rule-based policies (`rule_based`) list rules, strictest first; `search.fill` finds an ensemble that obeys
whenever there is one, within a bounded number of steps. Rules are relaxed after quarantined bookies are taken and
before bookies that do not answer; enforced rules never. Locations come from what bookies publish (properties
`networkLocation`, or `region`, `zone`, `rack`, `upgradeDomain`), from a file, a script or a mapping (`sources`).
`TopologyTracker` keeps the last known location of bookies that left, and no decision waits more than two seconds for
one.
"""
