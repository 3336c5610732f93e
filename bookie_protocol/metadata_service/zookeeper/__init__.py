"""ZooKeeper driver: kazoo's threads bridged to the event loop, with Apache BookKeeper's layout."""
