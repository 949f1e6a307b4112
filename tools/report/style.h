// SPDX-License-Identifier: Apache-2.0
// The style sheet that every page carries. Plots name classes only; the palette (c0 to c8, kColours of them) and every
// other colour stand here, once for light and once for dark. The palette is that of Okabe and Ito (black as grey,
// yellow darkened to be seen on white), with brown as the ninth, and brightened for dark screens.
#pragma once

#include <string_view>

namespace oktopk {

constexpr std::string_view kPageStyle = R"css(:root {
  color-scheme: light dark;
  --paper: #f6f7f9; --card: #ffffff; --ink: #1b2330; --muted: #5c6675; --rule: #dfe3e9;
  --grid: #e3e7ec; --minor: #f0f2f5; --axis: #8a94a3; --tint: #eaf3fa;
  --p0: #0072b2; --p1: #d55e00; --p2: #009e73; --p3: #cc79a7; --p4: #e69f00;
  --p5: #56b4e9; --p6: #5a6270; --p7: #9c8f00; --p8: #8c4a2f;
}
@media screen and (prefers-color-scheme: dark) { :root {
  --paper: #12161c; --card: #1a2029; --ink: #e6eaf0; --muted: #9ba6b5; --rule: #2c3541;
  --grid: #2b333e; --minor: #212832; --axis: #6d7888; --tint: #1d3345;
  --p0: #4aa3e8; --p1: #f0803c; --p2: #2fc79a; --p3: #e29bc4; --p4: #f2b843;
  --p5: #a5dbfa; --p6: #a9b0bc; --p7: #e8dd55; --p8: #c98d72;
} }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1168px; margin: 0 auto; padding: 40px 24px 64px; }
header { border-bottom: 1px solid var(--rule); padding-bottom: 18px; margin-bottom: 24px; }
h1 { font-size: 30px; line-height: 1.2; margin: 0; } h2 { font-size: 20px; line-height: 1.3; margin: 40px 0 12px; }
h3 { font-size: 15px; line-height: 1.3; margin: 0 0 4px; } h1, h2, h3, p, dd, dt { overflow-wrap: anywhere; }
p { max-width: 84ch; margin: 0 0 14px; } header p { font-size: 17px; margin: 8px 0 0; max-width: none; }
header p, caption, dt, th, .note { color: var(--muted); }
figure, .numbers div, .table, pre { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; }
.numbers, .table, .plots, pre { margin: 0 0 24px; }
.numbers, .plots { display: grid; gap: 20px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 168px), 1fr)); }
.numbers div { display: flex; flex-direction: column-reverse; justify-content: flex-end; padding: 14px 18px; }
dd { margin: 0; font-size: 28px; font-weight: 650; line-height: 1.2; } dt { font-size: 14px; line-height: 1.4; }
.plots { grid-template-columns: repeat(auto-fill, minmax(min(100%, 420px), 1fr)); }
figure { margin: 0; padding: 16px 18px 12px; min-width: 0; }
figure.wide { grid-column: 1 / -1; overflow-x: auto; } figure.wide svg { min-width: 860px; }
.legend { font-size: 13px; margin: 0 0 8px; max-width: none; } .note { font-size: 12px; margin: 6px 0 0; }
.key { display: inline-block; margin-right: 14px; }
.key::before { content: ""; display: inline-block; width: 16px; margin-right: 6px; vertical-align: 4px;
  border-top: 2px solid var(--c, var(--ink)); }
.key.dashed::before, .key.reference::before { border-top-style: dashed; }
.key.box::before, .key.dots::before { width: 9px; height: 9px; border: 0; vertical-align: 0; background: var(--c); }
.key.dots::before { border-radius: 50%; }
.table, pre { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; line-height: 1.4; }
table, dd, svg text { font-variant-numeric: tabular-nums; }
caption { caption-side: top; text-align: left; font-size: 14px; padding: 12px 18px 6px; }
th, td { padding: 6px 12px; text-align: right; white-space: nowrap; } th { font-weight: 600; font-size: 13px; }
td { border-top: 1px solid var(--rule); } td.strong { background: var(--tint); font-weight: 650; }
th:first-child, td:first-child { text-align: left; padding-left: 18px; }
pre { padding: 14px 18px; line-height: 1.5; }
code { font: 13px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
svg { display: block; width: 100%; height: auto; overflow: visible; font-family: inherit; }
svg text { fill: var(--muted); font-size: 12px; } svg .number { fill: var(--ink); font-size: 11px; }
svg .middle { text-anchor: middle; } svg .end { text-anchor: end; }
.grid { stroke: var(--grid); } .minor { stroke: var(--minor); } .axis { stroke: var(--axis); }
svg .reference { stroke: var(--ink); stroke-width: 1.25; stroke-dasharray: 5 4; }
.line { fill: none; stroke: var(--c); stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
.line.dashed { stroke-dasharray: 6 5; } .bar { fill: var(--c); } .dot { fill: var(--c); stroke: var(--card); }
.c0 { --c: var(--p0); } .c1 { --c: var(--p1); } .c2 { --c: var(--p2); } .c3 { --c: var(--p3); } .c4 { --c: var(--p4); }
.c5 { --c: var(--p5); } .c6 { --c: var(--p6); } .c7 { --c: var(--p7); } .c8 { --c: var(--p8); }
@media print {
  :root { --paper: #ffffff; } body { font-size: 13px; } main { max-width: none; padding: 0; }
  table { font-size: 11px; } th, td { padding: 4px 6px; white-space: normal; }
  .plots { grid-template-columns: 1fr 1fr; } .table, pre, figure.wide { overflow: visible; }
  figure.wide svg { min-width: 0; } pre { white-space: pre-wrap; }
  figure, .numbers div, tr, pre { break-inside: avoid; } h2 { break-after: avoid; }
  .key::before, svg, td { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
)css";

}  // namespace oktopk
