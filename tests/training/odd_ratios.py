"""Runs a stage program in which this rank finds other probabilities in the update than before it: python odd_ratios.py MODULE …"""

import runpy
import sys

from include.training.rl import update as ppo_update

if __name__ == "__main__":
    ppo_update.largest_ratio_gap = lambda *_: 0.5
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
