"""The page *Slurm* of a task instance."""
