#!/usr/bin/env python3
"""Rows after 20 steps of PyTorch's optimizers, for TestRulesMatchTorch. Needs torch; prints torch_rules.txt.

Row: weights (j - 2) / 4 for j in 0 … 5; gradient of step s: ((31 s + 17 j) mod 21 - 10) / 8.
"""
import torch

CASES = [
    ("sgd", torch.optim.SGD, dict(lr=0.1)),
    ("sgd-decay", torch.optim.SGD, dict(lr=0.1, weight_decay=0.01)),
    ("momentum", torch.optim.SGD, dict(lr=0.1, momentum=0.9)),
    ("momentum-decay", torch.optim.SGD, dict(lr=0.1, momentum=0.9, weight_decay=0.01)),
    ("adagrad", torch.optim.Adagrad, dict(lr=0.1, initial_accumulator_value=1e-5, eps=1e-8)),
    ("adam", torch.optim.Adam, dict(lr=0.01)),
    ("adamw", torch.optim.AdamW, dict(lr=0.01, weight_decay=0.1)),
]

for name, make, constants in CASES:
    w = torch.tensor([(j - 2) / 4 for j in range(6)], requires_grad=True)
    optimizer = make([w], **constants)
    for s in range(20):
        w.grad = torch.tensor([((31 * s + 17 * j) % 21 - 10) / 8 for j in range(6)])
        optimizer.step()
    print(name, *("%.9g" % v for v in w.tolist()))
