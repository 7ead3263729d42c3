#!/usr/bin/env python3
"""page.py PROMETHEUS [ROW...] > page.html: the panels of deploy/grafana/rowraft.json, or of some rows, as a page of SVG.

It asks a Prometheus for the queries of the dashboard and draws what Grafana would, without Grafana. It made the picture
of docs/ops/metrics.md: chromium --headless --screenshot=OUT.png --window-size=1500,HEIGHT page.html. No product uses it.
"""
import datetime
import html
import json
import math
import pathlib
import sys
import time
import urllib.parse
import urllib.request

COLORS = ["#7eb26d", "#eab839", "#6ed0e0", "#ef843c", "#e24d42", "#1f78c1", "#ba43a9", "#705da0", "#508642", "#cca300"]
MINUTES, STEP = 5, 5  # the time that is drawn, seconds between points
CELL, UNIT = 61, 30  # pixels of a column and of a row of the grid


def series(base, query):
    end = time.time()
    q = urllib.parse.urlencode({"query": query, "start": end - 60 * MINUTES, "end": end, "step": STEP})
    with urllib.request.urlopen(f"{base}/api/v1/query_range?{q}") as r:
        return json.load(r)["data"]["result"]


def legend(form, labels):
    for k, v in labels.items():
        form = form.replace("{{" + k + "}}", v)
    return form


def text(v, unit):
    """The value of an axis or a figure, as people read it."""
    if math.isnan(v):
        return "–"
    if unit in ("bytes", "Bps"):
        for p in ("", "Ki", "Mi", "Gi", "Ti"):
            if abs(v) < 1024 or p == "Ti":
                return f"{v:.3g} {p}B" + ("/s" if unit == "Bps" else "")
            v /= 1024
    if unit == "s" and v and abs(v) < 120:
        for f, p in ((1, "s"), (1e3, "ms"), (1e6, "µs")):
            if abs(v) * f >= 1 or p == "µs":
                return f"{v * f:.3g} {p}"
    if unit == "s":
        return f"{v / 60:.3g} min" if v else "0 s"
    if unit == "percentunit":
        return f"{100 * v:.3g} %"
    suffix = {"reqps": "/s", "d": " d"}.get(unit, "")
    for f, p in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(v) >= f:
            return f"{v / f:.3g}{p}{suffix}"
    return f"{v:.3g}{suffix}"


def chart(lines, w, h, unit, floor, stacked):
    """An SVG of lines, each a name and its points (time, value)."""
    if stacked:
        total, out = {}, []
        for name, points in lines:
            for t, v in points:
                total[t] = total.get(t, 0) + (0 if math.isnan(v) else v)
            out.append((name, [(t, total[t]) for t, _ in points]))
        lines = out
    values = [v for _, p in lines for _, v in p if not math.isnan(v)]
    rows = min(len(lines), 4)
    left, bottom = 66, h - 22 - 14 * ((rows + 1) // 2)
    s = [f'<svg width="{w}" height="{h}">']
    if not values:
        return s[0] + f'<text x="{w // 2}" y="{h // 2}" text-anchor="middle" class="dim">no data</text></svg>'
    lo, hi = min(values), max(values)
    lo = min(lo, floor) if floor is not None else lo
    hi = hi if hi > lo else lo + 1
    end = max(t for _, p in lines for t, _ in p)
    x = lambda t: left + (w - left - 8) * (1 - (end - t) / (60 * MINUTES))
    y = lambda v: bottom - (bottom - 8) * (v - lo) / (hi - lo)
    for i in range(4):
        v = lo + (hi - lo) * i / 3
        s.append(f'<line x1="{left}" x2="{w - 8}" y1="{y(v):.0f}" y2="{y(v):.0f}" class="grid"/>'
                 f'<text x="{left - 6}" y="{y(v) + 4:.0f}" text-anchor="end" class="dim">{text(v, unit)}</text>')
    for i in range(0, MINUTES + 1):
        at = datetime.datetime.fromtimestamp(end - 60 * i, datetime.timezone.utc)
        s.append(f'<text x="{x(end - 60 * i):.0f}" y="{bottom + 14}" text-anchor="middle" class="dim">{at:%H:%M}</text>')
    for i, (name, points) in enumerate(lines):
        d = " ".join(f"{x(t):.1f},{y(v):.1f}" for t, v in points if not math.isnan(v))
        s.append(f'<polyline points="{d}" fill="none" stroke="{COLORS[i % len(COLORS)]}" stroke-width="1.5"/>')
    for i, (name, _) in enumerate(lines[:4]):
        at = (left if i % 2 == 0 else left + (w - left) // 2, bottom + 30 + 14 * (i // 2))
        more = f" … {len(lines) - 4} more" if i == 3 and len(lines) > 4 else ""
        s.append(f'<rect x="{at[0]}" y="{at[1] - 8}" width="9" height="9" fill="{COLORS[i % len(COLORS)]}"/>'
                 f'<text x="{at[0] + 13}" y="{at[1]}" class="dim">{html.escape(name[:34] + more)}</text>')
    return "".join(s) + "</svg>"


def main():
    base, wanted = sys.argv[1].rstrip("/"), sys.argv[2:]
    board = json.loads((pathlib.Path(__file__).parents[2] / "deploy/grafana/rowraft.json").read_text())
    print('<meta charset="utf-8"><style>body{background:#111217;margin:8px;font:12px sans-serif;color:#ccccdc}'
          '.p{position:absolute;background:#181b1f;border:1px solid #25272b;box-sizing:border-box;overflow:hidden}'
          '.t{padding:4px 8px;font-weight:600;height:14px;white-space:nowrap;font-size:11px}.row{font-size:15px;background:none;border:0}'
          '.dim{fill:#9a9ba3;font-size:11px}.grid{stroke:#25272b}.v{font-size:30px;text-align:center;color:#73bf69}</style>')
    top, shown = None, True  # top: where rows that are not wanted begin
    offset = 0  # grid rows of rows that are not wanted
    for p in board["panels"]:
        g = p["gridPos"]
        if p["type"] == "row":
            shown = not wanted or p["title"] in wanted
            if not shown and top is None:
                top = g["y"]
            if shown and top is not None:
                offset, top = offset + g["y"] - top, None
        if not shown:
            continue
        w, h = g["w"] * CELL - 6, g["h"] * UNIT - 6
        print(f'<div class="p {"row" if p["type"] == "row" else ""}" style="left:{g["x"] * CELL + 8}px;'
              f'top:{(g["y"] - offset) * UNIT + 8}px;width:{w}px;height:{h}px"><div class="t">{html.escape(p["title"])}</div>')
        if p["type"] != "row":
            d = p["fieldConfig"]["defaults"]
            lines = []
            for target in p["targets"]:
                for one in series(base, target["expr"]):
                    points = [(float(t), float(v)) for t, v in one["values"]]
                    lines.append((legend(target["legendFormat"], one["metric"]), points))
            if p["type"] == "stat":
                print(f'<div class="v">{text(lines[0][1][-1][1], d["unit"]) if lines else "–"}</div>')
            else:
                print(chart(lines, w - 2, h - 24, d["unit"], d.get("min"), "stacking" in str(d.get("custom"))))
        print("</div>")


main()
