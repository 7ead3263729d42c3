#!/usr/bin/env python3
"""Writes rules.hex: rows after some pushes and assigns, computed from the formulas
of docs/formats/rules.md with Python floats, each result rounded to float32 (for + - * /
and sqrt of float32 numbers that is the correctly rounded result).

A line: kind, eleven constants (lr, initial accumulator, epsilon, beta1, beta2, momentum, weight
decay, bound, l1, l2, beta), dim, number of steps; the weights at the start; the steps: op (0 push, 1 assign),
lr, dim numbers; the weights and the state at the end. All numbers but counts are float32 bits in hex.
"""
import math, struct

def f(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]

def bits(x):
    return "%08x" % struct.unpack("<I", struct.pack("<f", x))[0]

def mul(a, b): return f(a * b)
def add(a, b): return f(a + b)
def sub(a, b): return f(a - b)
def div(a, b): return f(a / b)
def root(a): return f(math.sqrt(a))

SGD, ADAGRAD, ADAM, MOMENTUM, ROWWISE, FTRL, ADD = range(1, 8)
NAMES = "lr acc eps beta1 beta2 momentum decay bound l1 l2 beta".split()

class Row:
    def __init__(self, kind, c, w):
        self.kind, self.c, self.w, n = kind, c, list(w), len(w)
        self.s = {SGD: [], ADD: [], ADAGRAD: [c["acc"]] * n, MOMENTUM: [0.0] * n, ROWWISE: [c["acc"]],
                  ADAM: [0.0] * (2 * n) + [1.0, 1.0], FTRL: [0.0] * n + [c["acc"]] * n + [c["lr"]]}[kind]
        if kind == FTRL:
            self.fit()

    def fit(self):
        n, c = len(self.w), self.c
        for i, w in enumerate(self.w):
            self.s[i] = 0.0
            if w != 0:
                d = add(div(add(c["beta"], root(self.s[n + i])), self.s[2 * n]), c["l2"])
                self.s[i] = sub(0.0, add(mul(w, d), math.copysign(c["l1"], w)))

    def assign(self, v):
        self.w = list(v)
        if self.kind == FTRL:
            self.fit()

    def push(self, lr, g):
        c, w, s, n, kind = self.c, self.w, self.s, len(self.w), self.kind
        if c["decay"]:
            if kind == ADAM:
                for i in range(n):
                    w[i] = sub(w[i], mul(mul(lr, c["decay"]), w[i]))
            else:
                g = [add(g[i], mul(c["decay"], w[i])) for i in range(n)]
        if kind == ADAM:
            s[2 * n], s[2 * n + 1] = mul(s[2 * n], c["beta1"]), mul(s[2 * n + 1], c["beta2"])
        if kind == ROWWISE:
            sums = [0.0] * 8
            for i in range(n):
                sums[i % 8] = add(sums[i % 8], mul(g[i], g[i]))
            q = add(add(add(sums[0], sums[4]), add(sums[2], sums[6])), add(add(sums[1], sums[5]), add(sums[3], sums[7])))
            s[0] = add(s[0], div(q, n))
        if kind == FTRL:
            if lr == 0:
                return
            k = sub(div(1.0, lr), div(1.0, s[2 * n]))
            s[2 * n] = lr
        for i in range(n):
            if kind == SGD:
                w[i] = sub(w[i], mul(lr, g[i]))
            elif kind == ADD:
                w[i] = add(w[i], g[i])
            elif kind == MOMENTUM:
                s[i] = add(mul(c["momentum"], s[i]), g[i])
                w[i] = sub(w[i], mul(lr, s[i]))
            elif kind == ADAGRAD:
                s[i] = add(s[i], mul(g[i], g[i]))
                w[i] = sub(w[i], div(mul(lr, g[i]), add(root(s[i]), c["eps"])))
            elif kind == ROWWISE:
                w[i] = sub(w[i], div(mul(lr, g[i]), add(root(s[0]), c["eps"])))
            elif kind == ADAM:
                b1, b2 = c["beta1"], c["beta2"]
                s[i] = add(mul(b1, s[i]), mul(sub(1.0, b1), g[i]))
                s[n + i] = add(mul(b2, s[n + i]), mul(sub(1.0, b2), mul(g[i], g[i])))
                m, v = div(s[i], sub(1.0, s[2 * n])), div(s[n + i], sub(1.0, s[2 * n + 1]))
                w[i] = sub(w[i], div(mul(lr, m), add(root(v), c["eps"])))
            elif kind == FTRL:
                r = root(s[n + i])
                s[n + i] = add(s[n + i], mul(g[i], g[i]))
                R = root(s[n + i])
                sigma = add(div(sub(R, r), lr), mul(add(c["beta"], r), k))
                z = s[i] = sub(add(s[i], g[i]), mul(sigma, w[i]))
                if abs(z) <= c["l1"]:
                    w[i] = 0.0
                else:
                    w[i] = div(sub(math.copysign(c["l1"], z), z), add(div(add(c["beta"], R), lr), c["l2"]))
        if c["bound"]:
            for i in range(n):
                if abs(w[i]) > c["bound"]:
                    w[i] = math.copysign(c["bound"], w[i])

state = 1
def number(scale):
    """splitmix64, uniform in ±scale"""
    global state
    state = (state + 0x9E3779B97F4A7C15) % 2**64
    z = state
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
    z ^= z >> 31
    return f(((z >> 11) * 2.0**-52 - 1) * scale)

RULES = [
    (SGD, dict(lr=0.1)), (SGD, dict(lr=0.1, decay=0.01, bound=0.5)),
    (MOMENTUM, dict(lr=0.1, momentum=0.9)), (MOMENTUM, dict(lr=0.1, momentum=0.5, decay=0.1, bound=1)),
    (ADAGRAD, dict(lr=0.1, acc=0.1, eps=1e-8)), (ADAGRAD, dict(lr=0.1, acc=0.1, decay=0.01, bound=0.7)),
    (ROWWISE, dict(lr=0.1, acc=0.1, eps=1e-8)), (ROWWISE, dict(lr=0.1, eps=1e-8, decay=0.05, bound=0.9)),
    (ADAM, dict(lr=0.01, beta1=0.9, beta2=0.999, eps=1e-8)), (ADAM, dict(lr=0.01, beta1=0.9, beta2=0.99, eps=1e-6, decay=0.1, bound=0.8)),
    (FTRL, dict(lr=0.1, beta=1)), (FTRL, dict(lr=0.1, acc=0.1, l1=0.5, l2=2, beta=0.5, bound=0.05)),
    (ADD, dict()), (ADD, dict(bound=1.25)),
]
for kind, given in RULES:
    c = {name: f(given.get(name, 0)) for name in NAMES}
    for dim in (1, 7, 8, 50):
        start = [number(1) for _ in range(dim)]
        steps = []
        row = Row(kind, c, start)
        for t in range(6):
            lr = c["lr"] if t < 3 else f(c["lr"] / (t - 1))
            if kind == FTRL and t == 2:
                lr = 0.0
            v = [number(2) for _ in range(dim)]
            if t == 4:
                v[0] = 0.0
                row.assign(v)
            else:
                row.push(lr, v)
            steps.append((int(t == 4), lr, v))
        out = [str(kind)] + [bits(c[name]) for name in NAMES] + [str(dim), str(len(steps))] + [bits(x) for x in start]
        for op, lr, v in steps:
            out += [str(op), bits(lr)] + [bits(x) for x in v]
        print(" ".join(out + [bits(x) for x in row.w + row.s]))
