"""How the HTML page looks: one style for light and dark, screen and paper."""

STYLE = """
:root {
  --page: #fff; --text: #1c2128; --quiet: #57606a; --line: #d4dae0; --panel: #f5f7f9; --link: #0b5cad;
  --f1: #6894c2; --p: #a3470a; --r: #12684a; --heat-right: #a9cdf0; --heat-wrong: #f6b26b; --wrong: #b42318;
  --type: #bf7ca3; --boundary: #b38a31; --missed: #8b9198; --spurious: #d57753;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14181d; --text: #e4e8ec; --quiet: #a0a9b3; --line: #39424c; --panel: #1d2329; --link: #7fb8f2;
    --f1: #3268a0; --p: #f0a36b; --r: #6fd0a8; --heat-right: #24588c; --heat-wrong: #9a5410; --wrong: #ff8b7d;
    --type: #925079; --boundary: #816014; --missed: #5e666f; --spurious: #a04f30;
  }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 1.5rem 1rem 3rem; background: var(--page); color: var(--text);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 .75rem; padding-top: 1rem; border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1rem 0 .5rem; }
header p, .note, .key, figcaption, footer { color: var(--quiet); }
.note, .key, figcaption, footer { font-size: .875rem; }
a { color: var(--link); }
nav { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; font-size: .9375rem; }
footer { margin-top: 3rem; border-top: 1px solid var(--line); padding-top: 1rem; }

.tiles { display: flex; flex-wrap: wrap; gap: .75rem; margin: 1.25rem 0; }
.tiles div { background: var(--panel); border: 1px solid var(--line); border-radius: .5rem; padding: .6rem 1rem;
  flex: 1 1 9rem; }
.tiles dt { color: var(--quiet); font-size: .875rem; overflow-wrap: anywhere; }
.tiles dd { margin: 0; }
.tiles b { font-size: 1.5rem; font-variant-numeric: tabular-nums; margin-right: .25rem; }
.tiles small { color: var(--quiet); white-space: nowrap; }

.scroll { overflow-x: auto; }
.scroll:focus-visible, summary:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
table { border-collapse: collapse; font-size: .9375rem; font-variant-numeric: tabular-nums; margin: .5rem 0; }
caption { text-align: left; font-weight: 600; padding: .75rem 0 .25rem; }
th, td { padding: .25rem .75rem; text-align: left; vertical-align: top; }
th:first-child { padding-left: .25rem; }
thead th { color: var(--quiet); font-weight: 500; border-bottom: 1px solid var(--line); vertical-align: bottom; }
tbody th { font-weight: 500; white-space: nowrap; }
table:not(.shares) tbody tr:nth-child(even) { background: var(--panel); }
.num { text-align: right; white-space: nowrap; }
.heat { background: color-mix(in srgb, var(--heat-wrong) var(--share), transparent); }
.heat.right { background: color-mix(in srgb, var(--heat-right) var(--share), transparent); font-weight: 600; }
details { margin: .5rem 0; }
summary { cursor: pointer; color: var(--link); width: max-content; max-width: 100%; }
summary h3 { display: inline-block; margin: .75rem 0 .25rem; color: var(--text); }
.beside { display: flex; flex-wrap: wrap; gap: 1rem 2.5rem; align-items: flex-start; }

figure { margin: .75rem 0; overflow-x: auto; }
svg[width="720"] { min-width: 34rem; }
svg { max-width: 100%; height: auto; display: block; font-size: 13px; }
svg text { fill: var(--text); }
svg .tick { fill: var(--quiet); font-size: 12px; }
svg .value { font-variant-numeric: tabular-nums; }
.grid { stroke: var(--line); } .zero { stroke: var(--text); }
.f1 { fill: var(--f1); } .whisker { stroke: var(--text); fill: none; stroke-width: 1.25; }
.p { fill: var(--p); } .r { fill: var(--page); stroke: var(--r); stroke-width: 2; }
.diagonal { stroke: var(--quiet); stroke-dasharray: 5 4; } .curve { fill: none; stroke: var(--link); }
.point { fill: var(--link); stroke: var(--page); }
.point.unsure { fill: var(--page); stroke: var(--link); stroke-width: 2; }
.type { fill: var(--type); } .boundary { fill: var(--boundary); } .missed { fill: var(--missed); }
.spurious { fill: var(--spurious); } svg text.on { fill: var(--text); font-size: 12px; }
.swatch { display: inline-block; width: .9em; height: .9em; border-radius: 2px; vertical-align: -.1em;
  margin-left: .75rem; }
.swatch:first-child { margin-left: 0; }
.swatch.f1 { background: var(--f1); } .swatch.type { background: var(--type); }
.swatch.boundary { background: var(--boundary); } .swatch.missed { background: var(--missed); }
.swatch.spurious { background: var(--spurious); }
.whisker-key { display: inline-block; width: 1.5em; height: .6em; margin-left: .75rem; border: solid var(--text);
  border-width: 0 1px; background: linear-gradient(var(--text), var(--text)) center / 100% 1px no-repeat; }
.p-key { color: var(--p); margin-left: .75rem; } .r-key { color: var(--r); margin-left: .75rem; font-weight: 700; }

.example { margin: 0 0 .75rem; padding: .6rem .9rem; background: var(--panel); border: 1px solid var(--line);
  border-radius: .5rem; }
.words { display: inline-grid; gap: 3px 8px; align-items: end; padding: .35rem 0; }
.word { white-space: pre; text-align: center; }
.side { color: var(--quiet); font-size: .8125rem; padding-right: .75rem; align-self: center; }
.bracket { font-size: .75rem; line-height: 1.1; text-align: center; white-space: nowrap; padding: 0 4px;
  color: var(--quiet); border: 1.5px solid var(--quiet); }
.bracket.above { border-bottom: 0; border-radius: 4px 4px 0 0; padding-top: 1px; }
.bracket.below { border-top: 0; border-radius: 0 0 4px 4px; padding-bottom: 1px; align-self: start; }
.bracket.wrong { color: var(--wrong); border-color: var(--wrong); border-width: 2.5px; font-weight: 700; }
.bracket.wrong.above { border-bottom-width: 0; } .bracket.wrong.below { border-top-width: 0; }
.cut-left { border-left-style: dotted; } .cut-right { border-right-style: dotted; }
@media print { nav { display: none; } .scroll { overflow: visible; } section { break-inside: avoid-page; } }
"""
