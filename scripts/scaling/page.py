# SPDX-License-Identifier: Apache-2.0
"""The HTML page, all in one file: style and images inside, no script, nothing loaded. It looks like the reports of the
command (tools/report/style.cc)."""

import base64
from html import escape

from . import plan, tables
from .words import CAPTIONS, method_paragraphs

STYLE = """:root { color-scheme: light dark;
  --paper: #f6f7f9; --card: #ffffff; --ink: #1b2330; --muted: #5c6675; --rule: #dfe3e9; --tint: #eaf3fa; --accent: #0072b2; }
@media screen and (prefers-color-scheme: dark) { :root {
  --paper: #12161c; --card: #1a2029; --ink: #e6eaf0; --muted: #9ba6b5; --rule: #2c3541; --tint: #1d3345; --accent: #56b4e9; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1168px; margin: 0 auto; padding: 40px 24px 64px; }
header { border-bottom: 1px solid var(--rule); padding-bottom: 18px; margin-bottom: 24px; }
h1 { font-size: 30px; line-height: 1.2; letter-spacing: -0.015em; margin: 0; }
header p { color: var(--muted); font-size: 17px; margin: 8px 0 0; max-width: none; }
h2 { font-size: 20px; line-height: 1.3; letter-spacing: -0.01em; margin: 40px 0 12px; }
h3 { font-size: 16px; margin: 26px 0 8px; }
p, ul { max-width: 84ch; margin: 0 0 14px; }
p.key { font-weight: 600; }
nav p { max-width: none; } nav a { margin-right: 14px; } a { color: var(--accent); }
.figures { display: grid; gap: 16px; margin: 0 0 24px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 168px), 1fr)); }
.figures div { display: flex; flex-direction: column-reverse; justify-content: flex-end; padding: 14px 18px;
  background: var(--card); border: 1px solid var(--rule); border-radius: 10px; }
.figures dd { margin: 0; font-size: 28px; font-weight: 650; line-height: 1.2; letter-spacing: -0.02em; }
.figures dt { color: var(--muted); font-size: 14px; line-height: 1.4; margin-top: 2px; }
figure { margin: 0 0 24px; padding: 16px 18px 12px; background: var(--card); border: 1px solid var(--rule); border-radius: 10px; }
figure img { display: block; width: 100%; height: auto; background: #ffffff; border-radius: 6px; }
figcaption, caption { color: var(--muted); font-size: 14px; text-align: left; }
figcaption { margin-top: 10px; max-width: 100ch; } caption { caption-side: top; padding: 12px 18px 6px; }
.table { overflow-x: auto; margin: 0 0 24px; background: var(--card); border: 1px solid var(--rule); border-radius: 10px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; line-height: 1.4; font-variant-numeric: tabular-nums; }
th, td { padding: 5px 10px; text-align: right; white-space: nowrap; }
th { color: var(--muted); font-weight: 600; font-size: 13px; vertical-align: bottom; white-space: normal; }
td { border-top: 1px solid var(--rule); }
th:first-child, td:first-child, th.text, td.text { text-align: left; }
th:first-child, td:first-child { padding-left: 18px; } th:last-child, td:last-child { padding-right: 18px; }
tr.same td:first-child { color: transparent; } tr.same td { border-top-color: transparent; }
td.strong { background: var(--tint); font-weight: 650; }
pre { margin: 0 0 24px; padding: 14px 18px; overflow-x: auto; background: var(--card); border: 1px solid var(--rule);
  border-radius: 10px; line-height: 1.5; }
code { font: 13px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
details { margin: 0 0 24px; } summary { cursor: pointer; color: var(--accent); margin-bottom: 8px; }
@media (max-width: 640px) { main { padding: 24px 14px 40px; } h1 { font-size: 24px; } .figures { grid-template-columns: 1fr 1fr; } }
@media print { :root { --paper: #ffffff; } body { font-size: 13px; } table { font-size: 10px; } th, td { padding: 3px 4px; }
  .table, pre { overflow: visible; } main { max-width: none; padding: 0; } figure, tr, pre { break-inside: avoid; } }
"""
HEAD = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<meta name="color-scheme" content="light dark"/>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:"/>
"""


def html_table(table):
    if not table.rows:
        return ""
    text = ' class="text"'
    out = ['<div class="table"><table>', f"<caption>{escape(table.caption)}</caption>" if table.caption else "", "<thead><tr>"]
    out += [f"<th{text if name in tables.TEXT_COLUMNS else ''}>{escape(name).replace('P = ', 'P&nbsp;=&nbsp;')}</th>" for name in table.head]
    out.append("</tr></thead><tbody>")
    for r, row in enumerate(table.rows):
        # A name that is repeated is there for readers of the text, and hidden from the eye.
        out.append('<tr class="same">' if r and table.rows[r - 1][0] == row[0] else "<tr>")
        for c, cell in enumerate(row):
            names = ["text"] * (table.head[c] in tables.TEXT_COLUMNS) + ["strong"] * ((r, c) in table.strong)
            attribute = f' class="{" ".join(names)}"' if names else ""
            out.append(f"<td{attribute}>{escape(cell)}</td>")
        out.append("</tr>\n")
    return "".join(out) + "</tbody></table></div>\n"


class Page:
    def __init__(self, images):
        self.images, self.body, self.links = images, [], []

    def heading(self, text, name=None, level=2):
        if name:
            self.links.append(f'<a href="#{name}">{escape(text)}</a>')
        self.body.append(f'<h{level}{f" id={chr(34)}{name}{chr(34)}" if name else ""}>{escape(text)}</h{level}>\n')

    def paragraph(self, text, key=False):
        if text:
            self.body.append(f'<p{" class=key" if key else ""}>{escape(text)}</p>\n')

    def numbers(self, pairs):
        cards = "".join(f"<div><dt>{escape(label)}</dt><dd>{escape(number)}</dd></div>\n" for number, label in pairs)
        self.body.append(f'<dl class="figures">\n{cards}</dl>\n')

    def figure(self, name, caption):
        if name in self.images:
            data = base64.b64encode(self.images[name]).decode()
            self.body.append(f'<figure><img alt="{escape(caption)}" src="data:image/png;base64,{data}"/>'
                             f"<figcaption>{escape(caption)}</figcaption></figure>\n")

    def table(self, table, caption):
        table.caption = caption
        self.body.append(html_table(table))

    def code(self, lines):
        self.body.append(f"<pre><code>{escape(chr(10).join(lines))}</code></pre>\n")

    def commands(self, lines):
        self.body.append(f"<details><summary>All {len(lines)} commands</summary>\n")
        self.code(lines)
        self.body.append("</details>\n")

    def html(self, title, subtitle):
        return "".join([HEAD, f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body><main>\n",
                        f"<header><h1>{escape(title)}</h1><p>{escape(subtitle)}</p></header>\n",
                        f"<nav><p>{' '.join(self.links)}</p></nav>\n", *self.body, "</main></body></html>\n"])


def headline(rows, n):
    """The numbers on top: at the most ranks that all presets have, the slower of the network platforms first."""
    ranks = max(rows.values("ranks", n=n))
    found = []
    for platform in rows.values("platform", n=n):
        mine, dense = rows.get(platform, n, ranks, "circulant"), rows.get(platform, n, ranks, "dense")
        if mine and dense:
            found.append((tables.digits(dense["mean"] / mine["mean"], 2) + "x",
                          f"{platform}: circulant faster than dense, P = {ranks}"))
    return found


def build(rows, images, report):
    """The page. `report`: what else it tells, see scaling_report.py: commands, failures, explained, again, version."""
    page = Page(images)
    sizes, platforms = rows.values("n"), rows.values("platform")
    base = max(sizes, key=lambda n: len([c for c in rows.cells() if c[1] == n]))
    reference = "flat-25g" if "flat-25g" in platforms else platforms[0]
    page.numbers(headline(rows, base))
    page.heading("What was simulated", "what")
    for text in method_paragraphs(rows, report):
        page.paragraph(text)
    page.code(report["again"])
    page.commands(report["commands"])
    if report["failures"]:
        page.paragraph("Not simulated, because the command failed: " + "; ".join(report["failures"]), key=True)
    page.heading("Weak scaling", "scaling")
    for n in sizes:
        page.figure(f"time_{plan.count_text(n)}", CAPTIONS["overview"].format(n=plan.count_text(n)))
    for n in sizes:
        page.table(tables.times(rows, n), CAPTIONS["times"].format(n=plan.count_text(n)))
    page.heading("Where dense wins", "crossovers")
    for n in sizes:
        page.table(tables.rank_crossovers(rows, n), CAPTIONS["ranks"].format(n=plan.count_text(n)))
    page.table(tables.size_crossovers(rows), CAPTIONS["sizes"])
    if report["explained"]:
        page.table(tables.explained(report["explained"]), CAPTIONS["explained"])
    else:
        page.paragraph("No table of the tuner's crossovers: this command has no `explain`.")
    page.heading("auto", "auto")
    line = tables.auto_line(rows)
    page.paragraph(line or "Not simulated: this command does not know the preset auto.", key=bool(line))
    page.figure("auto", CAPTIONS["auto_figure"])
    page.table(tables.auto(rows), CAPTIONS["auto"])
    page.heading("Predicted and simulated", "predicted")
    page.paragraph(tables.model_line(rows), key=True)
    page.paragraph(tables.contention_line(rows))
    page.figure("predicted", CAPTIONS["predicted"])
    for n in sizes:
        page.table(tables.model_ratios(rows, n), CAPTIONS["ratios"].format(n=plan.count_text(n)))
    page.heading("Latency and bandwidth", "traffic")
    page.table(tables.complexity(rows, reference, base), CAPTIONS["complexity"].format(platform=reference, n=plan.count_text(base)))
    page.table(tables.bounds(rows, reference, base), CAPTIONS["bounds"].format(platform=reference, n=plan.count_text(base)))
    for platform in platforms:
        page.heading(platform, platform)
        page.paragraph(plan.SUMMARIES.get(platform, ""))
        page.figure(f"platform_{platform}", CAPTIONS["platform"].format(platform=platform))
    ranks = ", ".join(map(str, rows.values("ranks")))
    return page.html("oktopk: scaling", f"Weak scaling of sparse allreduces, simulated: P = {ranks}, "
                     f"n = {' and '.join(map(plan.count_text, sizes))}, density {plan.DENSITY:g}")
