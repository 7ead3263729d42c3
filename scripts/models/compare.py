"""Trains what `go run ./scripts/models` trained, with PyTorch, and prints a line for each model; or measures steps."""
import time

SPEED = "speed" in TASK


class Net(torch.nn.Module):
    """The models of trainer/models from the parts that PyTorch has, over fields of shape [batch, features, width]."""

    def __init__(self, kind, dense, features, dim, hidden, cross):
        super().__init__()
        self.kind, self.dense = kind, dense
        inputs = dense + features * dim
        if kind in ("lr", "fm", "wide-deep", "deepfm"):
            self.linear = torch.nn.Linear(dense, 1) if dense else torch.nn.Parameter(torch.zeros(1))
        if kind in ("wide-deep", "deepfm"):
            self.deep = self.network(inputs, hidden, 1)
        if kind == "dcn":
            self.crosses = torch.nn.ModuleList(torch.nn.Linear(inputs, inputs) for _ in range(cross))
            self.deep = torch.nn.Sequential(*list(self.network(inputs, hidden, 1))[:-1])
            self.last = torch.nn.Linear(inputs + hidden[-1], 1)
        if kind == "dlrm":
            self.bottom = self.network(dense, hidden, dim) if dense else None
            vectors = features + (dense > 0)
            self.low = torch.tril_indices(vectors, vectors, -1)
            pairs = self.low.shape[1]
            self.top = self.network(pairs + (dim if dense else 0), hidden, 1)
        for name, p in self.named_parameters():
            if p.dim() > 1:
                torch.nn.init.xavier_uniform_(p)
            else:
                torch.nn.init.zeros_(p)
        if dense and kind in ("lr", "fm", "wide-deep", "deepfm"):
            torch.nn.init.zeros_(self.linear.weight)
        if kind == "dlrm" and dense:
            torch.nn.init.uniform_(self.bottom[-1].bias, -1, 1)

    @staticmethod
    def network(inputs, hidden, outputs):
        layers = []
        for width in hidden:
            layers += [torch.nn.Linear(inputs, width), torch.nn.ReLU()]
            inputs = width
        return torch.nn.Sequential(*layers, torch.nn.Linear(inputs, outputs))

    def wide(self, dense, weights):
        return weights.sum(1) + (self.linear(dense)[:, 0] if self.dense else self.linear)

    def forward(self, dense, fields):
        if self.kind == "lr":
            return self.wide(dense, fields[:, :, 0])
        if self.kind in ("fm", "wide-deep", "deepfm"):
            z, e = self.wide(dense, fields[:, :, 0]), fields[:, :, 1:]
            if self.kind != "wide-deep":
                z = z + 0.5 * (e.sum(1).square().sum(1) - e.square().sum((1, 2)))
            return z if self.kind == "fm" else z + self.deep(torch.cat([dense, e.flatten(1)], 1))[:, 0]
        if self.kind == "dcn":
            x = x0 = torch.cat([dense, fields.flatten(1)], 1)
            for c in self.crosses:
                x = x0 * c(x) + x
            return self.last(torch.cat([x, self.deep(x0)], 1))[:, 0]
        v, first = fields, []
        if self.bottom is not None:
            first = [self.bottom(dense)]
            v = torch.cat([first[0].unsqueeze(1), v], 1)
        pairs = (v @ v.transpose(1, 2))[:, self.low[0], self.low[1]]
        return self.top(torch.cat([*first, pairs], 1))[:, 0]


def width(kind, dim):
    return {"lr": 1, "dcn": dim, "dlrm": dim}.get(kind, dim + 1)


def adagrad(params, lr):
    return torch.optim.Adagrad(params, lr=lr, initial_accumulator_value=1e-5, eps=1e-8)


def train(task, seed, keys, examples, held):
    torch.manual_seed(seed)
    rows = torch.empty(len(keys), width(task["kind"], TASK["dim"])).uniform_(-TASK["init"], TASK["init"]).requires_grad_()
    net = Net(task["kind"], TASK["dense"], TASK["features"], TASK["dim"], TASK["hidden"], TASK["cross"])
    steps = [adagrad([rows], task["lr"]), adagrad(net.parameters(), task["dense_lr"])]
    for _ in range(task["epochs"]):
        for at in range(0, len(examples.labels), TASK["batch"]):
            part = slice(at, at + TASK["batch"])
            z = net(examples.dense[part], functional.embedding(examples.index[part], rows))
            for s in steps:
                s.zero_grad(set_to_none=True)
            functional.binary_cross_entropy_with_logits(z, examples.labels[part]).backward()
            for s in steps:
                s.step()
    with torch.no_grad():
        return auc(net(held.dense, functional.embedding(held.index, rows)), held.labels)


def compare():
    keys = numbers("keys", numpy.uint64)
    examples, held = Examples("train", keys), Examples("held", keys)
    print(f"{TASK['data']}: {len(examples.labels)} examples, {len(held.labels)} held out, {len(keys)} rows, "
          f"{TASK['seeds']} seeds, torch {torch.__version__}\n")
    print("| data | model | bar | AUC | AUC in PyTorch | difference |")
    print("|---|---|---|---|---|---|")
    for task in TASK["tasks"]:
        scores = [train(task, seed, keys, examples, held) for seed in range(1, TASK["seeds"] + 1)]
        bar = f"≥ {task['at_least']}" if task["at_least"] else ""
        print(f"| {TASK['data']} | `{task['kind']}` | {bar} | {spread(task['auc'])} | {spread(scores)} | "
              f"{numpy.mean(task['auc']) - numpy.mean(scores):+.4f} |", flush=True)
    print()


def speed():
    """For each line of standard input, the number of a model, prints the CPU time of a step in seconds."""
    batch, models = TASK["batch"], []
    for m in TASK["models"]:
        torch.manual_seed(1)
        net = Net(m["kind"], m["dense"], m["features"], m["dim"], m["hidden"], m["cross"])
        fields = torch.randn(batch, m["features"], width(m["kind"], m["dim"])).requires_grad_()
        models.append((net, torch.randn(batch, m["dense"]), fields, (torch.rand(batch) > 0.5).float()))
    for line in sys.stdin:
        net, dense, fields, labels = models[int(line)]
        start = time.process_time()
        for _ in range(TASK["steps"]):
            for p in [fields, *net.parameters()]:
                p.grad = None
            functional.binary_cross_entropy_with_logits(net(dense, fields), labels).backward()
        print((time.process_time() - start) / TASK["steps"], flush=True)


speed() if SPEED else compare()
