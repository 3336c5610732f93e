"""The Kubernetes operator's package.

This release carries its command and its version only: the operator itself comes with the custom resources.
"""
