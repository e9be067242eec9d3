"""One cluster over one SSH connection."""
