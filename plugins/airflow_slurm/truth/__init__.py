"""What is true of a job, from all that Slurm says of it. Pure."""
