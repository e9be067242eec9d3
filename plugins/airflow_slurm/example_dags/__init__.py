"""Examples that run on any cluster with a connection ``slurm_default`` and a folder that its nodes share."""
