"""The objects of a cluster, made of its `spec`: pure functions.

The same cluster and context make the same objects, and nothing of the operator's version is in them. A key of the
configuration is in one of three places. What takes a restart is in an immutable ConfigMap named by its hash, so that it
counts in the template's hash. What a bookie takes without one, and sizes that follow from volumes that grow, is in
`<cluster>-bookie-settings`, which containers take as `BK_<key>` when they start and which counts in no hash: so it has
nothing unasked that older images may not know, because a bookie refuses to start with an unknown key. What differs
between pods (name, zone) is in the template's environment. Golden files show every object of six clusters (`python -m
tests.support.operator_clusters` writes them): another template hash there is a rolling restart of everybody.
"""
