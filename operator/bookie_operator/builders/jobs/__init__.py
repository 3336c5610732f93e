"""The builders of a BookieJob: the objects that run it. Pure, as all builders."""
