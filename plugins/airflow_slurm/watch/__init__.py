"""One loop for each cluster, and who follows a job in it."""
