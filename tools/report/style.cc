// SPDX-License-Identifier: Apache-2.0
#include "tools/report/style.h"

namespace oktopk {
namespace {

// The palette is that of Okabe and Ito (black as grey, yellow darkened to be seen on white), with
// brown as the ninth, and brightened for dark pages. Dark is for screens only, so that it never
// reaches a printer.
constexpr std::string_view kStyle = R"css(:root {
  color-scheme: light dark;
  --paper: #f6f7f9; --card: #ffffff; --ink: #1b2330; --muted: #5c6675; --rule: #dfe3e9;
  --grid: #e3e7ec; --minor: #f0f2f5; --axis: #8a94a3; --tint: #eaf3fa; --accent: #0072b2;
  --p0: #0072b2; --p1: #d55e00; --p2: #009e73; --p3: #cc79a7; --p4: #e69f00;
  --p5: #56b4e9; --p6: #5a6270; --p7: #9c8f00; --p8: #8c4a2f;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --paper: #12161c; --card: #1a2029; --ink: #e6eaf0; --muted: #9ba6b5; --rule: #2c3541;
    --grid: #2b333e; --minor: #212832; --axis: #6d7888; --tint: #1d3345; --accent: #56b4e9;
    --p0: #4aa3e8; --p1: #f0803c; --p2: #2fc79a; --p3: #e29bc4; --p4: #f2b843;
    --p5: #a5dbfa; --p6: #a9b0bc; --p7: #e8dd55; --p8: #c98d72;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
}
main { max-width: 1168px; margin: 0 auto; padding: 40px 24px 64px; }
header { border-bottom: 1px solid var(--rule); padding-bottom: 18px; margin-bottom: 24px; }
h1 { font-size: 30px; line-height: 1.2; letter-spacing: -0.015em; margin: 0; }
header p { color: var(--muted); font-size: 17px; margin: 8px 0 0; max-width: none; }
h2 { font-size: 20px; line-height: 1.3; letter-spacing: -0.01em; margin: 40px 0 12px; }
h1, h2, p, dd, dt { overflow-wrap: anywhere; }
p { max-width: 76ch; margin: 0 0 14px; }
figure {
  margin: 0; padding: 16px 18px 12px; background: var(--card); border: 1px solid var(--rule);
  border-radius: 10px; min-width: 0;
}
.figures {
  display: grid; gap: 16px; margin: 0 0 24px;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 168px), 1fr));
}
.figures div {
  display: flex; flex-direction: column-reverse; justify-content: flex-end; padding: 14px 18px;
  background: var(--card); border: 1px solid var(--rule); border-radius: 10px;
}
.figures dd {
  margin: 0; font-size: 28px; font-weight: 650; line-height: 1.2; letter-spacing: -0.02em;
  font-variant-numeric: tabular-nums;
}
.figures dt { color: var(--muted); font-size: 14px; line-height: 1.4; margin-top: 2px; }
.plots {
  display: grid; gap: 20px; margin: 0 0 24px;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 420px), 1fr));
}
.plots figure:has(> .wide) { grid-column: 1 / -1; overflow-x: auto; }
.table {
  overflow-x: auto; margin: 0 0 24px; background: var(--card); border: 1px solid var(--rule);
  border-radius: 10px;
}
table {
  border-collapse: collapse; width: 100%; font-size: 14.5px; line-height: 1.4;
  font-variant-numeric: tabular-nums;
}
caption {
  caption-side: top; text-align: left; color: var(--muted); font-size: 14px;
  padding: 12px 18px 6px;
}
th, td { padding: 7px 14px; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: 18px; }
th:last-child, td:last-child { padding-right: 18px; }
th { color: var(--muted); font-weight: 600; font-size: 13.5px; vertical-align: bottom; }
td { border-top: 1px solid var(--rule); }
tr.best td { background: var(--tint); font-weight: 650; }
tr.best td:first-child { box-shadow: inset 3px 0 var(--accent); }
pre {
  margin: 0 0 24px; padding: 14px 18px; overflow-x: auto; background: var(--card);
  border: 1px solid var(--rule); border-radius: 10px; line-height: 1.5;
}
code { font: 13.5px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
.plot { display: block; width: 100%; height: auto; overflow: visible; font-family: inherit; }
.plot.wide { min-width: 860px; }
.plot text { fill: var(--muted); font-size: 12px; font-variant-numeric: tabular-nums; }
.plot .title { fill: var(--ink); font-size: 15px; font-weight: 650; }
.plot .key { fill: var(--ink); font-size: 12.5px; }
.plot .note { font-size: 11.5px; }
.plot .number { fill: var(--ink); font-size: 11px; }
.plot .middle { text-anchor: middle; }
.plot .end { text-anchor: end; }
.plot .grid { stroke: var(--grid); }
.plot .minor { stroke: var(--minor); }
.plot .axis { stroke: var(--axis); }
.plot .reference { stroke: var(--ink); stroke-width: 1.25; stroke-dasharray: 5 4; }
.plot .line {
  fill: none; stroke: var(--c); stroke-width: 2; stroke-linejoin: round; stroke-linecap: round;
}
.plot .dashed { stroke-dasharray: 6 5; }
.plot .faint .line { stroke-width: 1; opacity: 0.28; }
.plot .bar { fill: var(--c); }
.plot .bar:hover { opacity: 0.75; }
.plot .dot { fill: var(--c); stroke: var(--card); stroke-width: 1; }
.plot .spot { fill: var(--c); stroke: var(--card); stroke-width: 1.5; opacity: 0; }
.plot .spot:hover { opacity: 1; }
.c0 { --c: var(--p0); } .c1 { --c: var(--p1); } .c2 { --c: var(--p2); }
.c3 { --c: var(--p3); } .c4 { --c: var(--p4); } .c5 { --c: var(--p5); }
.c6 { --c: var(--p6); } .c7 { --c: var(--p7); } .c8 { --c: var(--p8); }
@media (max-width: 640px) {
  main { padding: 24px 14px 40px; }
  h1 { font-size: 24px; }
  figure { padding: 12px 10px 8px; }
  .figures { gap: 10px; grid-template-columns: 1fr 1fr; }
  .figures div { padding: 10px 14px; }
  .figures dd { font-size: 22px; }
}
@media print {
  @page { margin: 14mm; }
  :root { --paper: #ffffff; }
  body { font-size: 13px; }
  table { font-size: 11px; }
  th { font-size: 10.5px; }
  th, td { padding: 4px 6px; white-space: normal; }
  .table, pre, .plots figure:has(> .wide) { overflow: visible; }
  .plot.wide { min-width: 0; }
  main { max-width: none; padding: 0; }
  .plots { grid-template-columns: 1fr 1fr; }
  .figures { gap: 10px; grid-template-columns: repeat(auto-fit, minmax(128px, 1fr)); }
  .figures dd { font-size: 20px; }
  figure, .figures div, tr, pre { break-inside: avoid; }
  h2 { break-after: avoid; }
  pre { white-space: pre-wrap; }
  .plot, .bar, tr.best td { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
)css";

}  // namespace

std::string_view page_style() { return kStyle; }

}  // namespace oktopk
