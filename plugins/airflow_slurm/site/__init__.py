"""What a site offers, and whether a job can run there at all."""
