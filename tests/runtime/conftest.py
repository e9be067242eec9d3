"""Small tensors: one thread is the fastest, and keeps the machine free for others."""

import torch

torch.set_num_threads(1)
