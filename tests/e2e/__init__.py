"""The operator on a real Kubernetes, named by KUBECONFIG: installed with Helm, with a writer and a reader under way."""
