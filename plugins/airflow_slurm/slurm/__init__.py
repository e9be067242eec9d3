"""Slurm's own language: commands, scripts, answers, states, reasons. Pure."""
