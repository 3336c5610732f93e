"""From a BookieJob to the objects that run it. Pure, as all builders."""
