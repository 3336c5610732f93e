"""Where network locations come from: a mapping, a file, a script, or what bookies publish about themselves."""
