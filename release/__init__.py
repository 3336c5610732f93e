"""Makes a release of Podkeeper from a checkout, and checks that everything in it agrees.

    python -m release check                        check that the checkout agrees with itself
    python -m release make REPOSITORY DIRECTORY    write all files of a release, and check them
    python -m release arm64                        check that every locked package can be had for arm64
    python -m release tag TAG                      check that TAG is that of the version, which CHANGELOG.md has
    python -m release notes                        print what CHANGELOG.md says about the version
    python -m release version X.Y.Z                write a new version wherever a file has to name it

The checkout names no registry. REPOSITORY (`OWNER/NAME`) is where the release is published, and
`release.staging` writes its addresses into a copy of the checkout, from which everything is built. pyproject.toml has
the version; `release.mentions` finds the files that repeat it.
"""
