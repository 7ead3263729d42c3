#!/usr/bin/env python3
"""The whole of a training program: connect, model, job, data, steps, checkpoints.

    python ctr.py ps0:7070,ps1:7070 ~/.rowraft s3://bucket/ctr-7

A test runs it while it kills the leader of a shard every few seconds: no push is lost, none is applied twice.
"""

import sys

import torch

import rowraft
import rowraft.torch as rt

servers, certs, destination = sys.argv[1:]
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
STEPS, USERS = 1500, 100


class Clicks(torch.utils.data.Dataset):
    """Batches: 13 numbers, the id of a user, and the click. User i is in each step, each 2nd, 4th or 8th step."""

    def __len__(self):
        return STEPS

    def __getitem__(self, step):
        g = torch.Generator().manual_seed(step)
        user = torch.arange(USERS)
        user = torch.where(step % (1 << user // 25) == 0, user, user % 25)
        dense = torch.randn(USERS, 13, generator=g)
        click = (dense[:, 0] + 2 * (user % 2) > 1).float()
        return dense, rt.KeyedJaggedTensor(["user_id"], user, lengths=torch.ones_like(user)), click


class DLRM(torch.nn.Module):
    def __init__(self, emb, dense_in):
        super().__init__()
        self.emb, self.bottom = emb, torch.nn.Linear(dense_in, 16)
        self.top = torch.nn.Sequential(torch.nn.Linear(16 + 16 + 1, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))

    def forward(self, dense, features):
        low = self.bottom(dense)
        user = self.emb(features)["user_id"].to(low.device)
        return self.top(torch.cat([low, user, (low * user).sum(1, keepdim=True)], 1)).squeeze(1)


ps = rowraft.connect(servers, certs=certs)
emb = rt.EmbeddingBagCollection(ps, tables=[
    rt.EmbeddingBagConfig(name="user", embedding_dim=16, feature_names=["user_id"], pooling=rt.SUM,
                          optimizer=rt.RowwiseAdagrad(lr=0.05), admit=rt.Count(3), expire="168h")])  # fmt: skip
model = DLRM(emb, dense_in=13).to(device)
opt = torch.optim.Adam(model.parameters())
bce = torch.nn.BCEWithLogitsLoss()
loader = torch.utils.data.DataLoader(Clicks(), batch_size=None)

job = rt.Job(ps, "ctr-7", model=model, opt=opt, mode="async", in_flight=4)
start = job.resume()
for step, (dense, kjt, y) in enumerate(rt.prefetch(job.data(loader), emb, depth=2), start):
    loss = bce(model(dense.to(device), kjt), y.to(device))
    opt.zero_grad()
    loss.backward()
    opt.step()
    job.step(step)
    if step % 1000 == 0:
        print(f"step {step}: loss {loss:.3f}", flush=True)
        job.checkpoint(destination)
job.close()
print(f"{step + 1} steps, loss {loss:.3f}")
