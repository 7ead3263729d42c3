"""compare.py DIR: trains what `go run ./scripts/optimizers` trained, with PyTorch, and prints the table of both.

DIR has description.json and files of little-endian numbers: the examples, the initial weights and rowraft's weights.
"""
DIM, BATCH = TASK["dim"], TASK["batch"]


class Rule(torch.optim.Optimizer):
    """An optimizer for sparse gradients that torch.optim does not have. It changes the rows of the batch only."""

    def __init__(self, params, lr):
        super().__init__(params, dict(lr=lr))

    @torch.no_grad()
    def step(self):
        w, lr = self.param_groups[0]["params"][0], self.param_groups[0]["lr"]
        g, state = w.grad.coalesce(), self.state[w]
        if not state:
            self.start(w, state, lr)
        self.move(w, g.values(), g.indices()[0], state, lr)


class LazyMomentum(Rule):
    """The velocity of a row stands still without a gradient of the row."""

    def start(self, w, s, lr):
        s["v"] = torch.zeros_like(w)

    def move(self, w, g, rows, s, lr):
        s["v"][rows] = 0.9 * s["v"][rows] + g
        w[rows] -= lr * s["v"][rows]


class LazyAdam(Rule):
    """Adam that counts the steps of each row."""

    def start(self, w, s, lr):
        s["m"], s["v"], s["t"] = torch.zeros_like(w), torch.zeros_like(w), torch.zeros(len(w), 1)

    def move(self, w, g, rows, s, lr):
        s["t"][rows] += 1
        s["m"][rows] = 0.9 * s["m"][rows] + 0.1 * g
        s["v"][rows] = 0.999 * s["v"][rows] + 0.001 * g * g
        m, v = s["m"][rows] / (1 - 0.9 ** s["t"][rows]), s["v"][rows] / (1 - 0.999 ** s["t"][rows])
        w[rows] -= lr * m / (v.sqrt() + 1e-8)


class RowWiseAdagrad(Rule):
    """EXACT_ROWWISE_ADAGRAD of FBGEMM: one accumulator for a row, of the mean square of its gradient."""

    def start(self, w, s, lr):
        s["n"] = torch.full((len(w), 1), 1e-5)

    def move(self, w, g, rows, s, lr):
        s["n"][rows] += (g * g).mean(1, keepdim=True)
        w[rows] -= lr * g / (s["n"][rows].sqrt() + 1e-8)


class FTRL(Rule):
    """Algorithm 1 of McMahan et al. 2013 with beta 1 and both lambdas 0. The paper starts at weights of 0; here z
    starts where the formula gives the initial weights."""

    def start(self, w, s, lr):
        s["n"], s["z"] = torch.zeros_like(w), -w / lr

    def move(self, w, g, rows, s, lr):
        before, after = s["n"][rows].sqrt(), (s["n"][rows] + g * g).sqrt()
        s["z"][rows] += g - (after - before) / lr * w[rows]
        s["n"][rows] += g * g
        w[rows] = -s["z"][rows] / ((1 + after) / lr)


SGD, ADAGRAD, ADAM = torch.optim.SGD, torch.optim.Adagrad, torch.optim.Adam
ADAGRAD_AS_OURS = (ADAGRAD, dict(initial_accumulator_value=1e-5, eps=1e-8))
MOMENTUM = (SGD, dict(momentum=0.9))
DENSE = {"sgd": (SGD, {}), "momentum": MOMENTUM, "adagrad": ADAGRAD_AS_OURS, "adam": (ADAM, {})}
# The optimizers of the embeddings, each with a name, whether the gradients are sparse as those of
# nn.Embedding(sparse=True), and an optimizer of the dense weights if it is not that of DENSE.
COUNTERPARTS = {
    "sgd": [("SGD", (SGD, {}), False)],
    "momentum": [("SGD(momentum=0.9)", MOMENTUM, False), ("the rule of rowraft", (LazyMomentum, {}), True)],
    "adagrad": [("Adagrad, our constants", ADAGRAD_AS_OURS, False), ("Adagrad, its defaults", (ADAGRAD, {}), False,
                                                                     (ADAGRAD, {}))],
    "rowwise-adagrad": [("the rule of FBGEMM", (RowWiseAdagrad, {}), True)],
    "adam": [("SparseAdam", (torch.optim.SparseAdam, {}), True), ("Adam", (ADAM, {}), False),
             ("the rule of rowraft", (LazyAdam, {}), True)],
    "ftrl": [("Algorithm 1", (FTRL, {}), True)],
}


def logits(rows, params, dense, index, sparse):
    """The DLRM of trainer/models, with its weights in the order of TASK["params"]."""
    p = iter(params)
    names = [x["Name"] for x in TASK["params"]]
    vectors, direct = functional.embedding(index, rows, sparse=sparse), None
    if TASK["dense"]:
        x, layers = dense, sum(n.startswith("bottom.") and n.endswith(".weights") for n in names)
        for i in range(layers):
            x = (x.relu() if i else x) @ next(p) + next(p)
        vectors = torch.cat([x.unsqueeze(1), vectors], 1)
        direct = x @ next(p)
    low, high = torch.tril_indices(vectors.shape[1], vectors.shape[1], -1)
    x = (vectors @ vectors.transpose(1, 2))[:, low, high] @ next(p) + next(p)
    x = x if direct is None else x + direct
    for weights in p:
        x = x.relu() @ weights + next(p)
    return x[:, 0]


def split(flat):
    sizes = [math.prod(p["Shape"]) for p in TASK["params"]]
    parts = torch.from_numpy(flat).split(sizes)
    return [x.clone().reshape(p["Shape"]) for x, p in zip(parts, TASK["params"])]


def train(optimizer, counterpart, seed, examples, held):
    """Returns the AUC of the held-out examples and the final weights: the rows, and a list of the dense weights."""
    _, (of_rows, constants), sparse, *other = counterpart
    of_dense, dense_constants = other[0] if other else DENSE[optimizer["dense"]]
    rows = torch.from_numpy(numbers(f"initial-{seed}.rows").reshape(-1, DIM)).requires_grad_()
    params = [p.requires_grad_() for p in split(numbers(f"initial-{seed}.dense"))]
    steps = [of_rows([rows], lr=optimizer["lr"], **constants),
             of_dense(params, lr=optimizer["dense_lr"], **dense_constants)]
    for _ in range(TASK["epochs"]):
        for at in range(0, len(examples.labels), BATCH):
            part = slice(at, at + BATCH)
            z = logits(rows, params, examples.dense[part], examples.index[part], sparse)
            for s in steps:
                s.zero_grad(set_to_none=True)
            functional.binary_cross_entropy_with_logits(z, examples.labels[part]).backward()
            for s in steps:
                s.step()
    with torch.no_grad():
        return auc(logits(rows, params, held.dense, held.index, False), held.labels), rows.detach(), params


def main():
    keys = numbers("keys", numpy.uint64)
    examples, held = Examples("train", keys), Examples("held", keys)
    batches = math.ceil(len(examples.labels) / BATCH)
    print(f"{TASK['data']}: {len(keys)} rows, {TASK['epochs'] * batches} batches of {BATCH}, {TASK['seeds']} seeds, "
          f"torch {torch.__version__}\n")
    print("| embeddings, dense | AUC | AUC with `in_flight: 2` | in PyTorch | AUC | row differs by | dense weight |")
    print("|---|---|---|---|---|---|---|")
    for number, o in enumerate(TASK["optimizers"]):
        left = f"`{o['name']}` {o['lr']:.4g}, `{o['dense']}` {o['dense_lr']:.4g} | {spread(o['auc'])} | "
        left += spread(o["auc_in_flight"])
        for counterpart in COUNTERPARTS[o["name"]]:
            scores, row, dense = [], 0, 0
            for seed in range(1, TASK["seeds"] + 1):
                score, rows, params = train(o, counterpart, seed, examples, held)
                scores.append(score)
                ours = torch.from_numpy(numbers(f"{number}-{seed}.rows").reshape(-1, DIM))
                row = max(row, (rows - ours).abs().max().item())
                added, first = split(numbers(f"{number}-{seed}.dense")), split(numbers(f"initial-{seed}.dense"))
                dense = max(dense, *((p - f - a).abs().max().item() for p, f, a in zip(params, first, added)))
            print(f"| {left} | {counterpart[0]} | {spread(scores)} | {row:.1g} | {dense:.1g} |", flush=True)
            left = "| | "
    print()


main()
