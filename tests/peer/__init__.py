"""Apache BookKeeper's own tests over bookies of ours: `make peer`.

    make peer                                   every class (hours); build/peer.tsv is the table
    make peer CLASSES="TestTLS or TestAuth"     some of them
    make peer BOOKIES=java CLASSES=...          the same with the bookies that they were written for

Maven loads the test-jar of `bookkeeper-server`. Each class runs in a JVM of its own, as Apache runs them. Its test base
makes bookies as objects of that JVM; `java/` (Seams.java says where) puts a process of `bookie serve` behind each of
them, which `bookies.py` starts, stops and pauses. The tests' clients, ZooKeeper, auditors and replication workers stay
Java's. A bookie that a test makes itself, to have it fail or wait, stays in the JVM beside ours.

`classes.toml` lists the classes, and what of them is not run: tests of the inside of a Java bookie, each with what it
asks for.
"""
