"""How boxes, trees and pages look: on light and dark grounds, on screen and on paper.

Boxes and trees bring no ground of their own: they stand on whatever a notebook or a page has. So their colours are of a
lightness between, seen on white as well as on black, and all letters have the colour of the text around them.
"""

# Of labels, by number: relative luminance 0.185 each, so at least 3 : 1 on white and on any ground as dark as #20242a.
COLOURS = (
    "#1f77db", "#c35710", "#228844", "#cd39a1", "#108390", "#d6404a",
    "#8b5fd7", "#678112", "#9b6f2d", "#597b94", "#d53a73", "#636dd8",
)  # fmt: skip

BOXES = (
    "".join(f".nestree .c{k}{{--c:{colour}}}" for k, colour in enumerate(COLOURS))
    + """
.nestree .text { line-height: 1.75; white-space: pre-wrap; overflow-wrap: anywhere; tab-size: 4; }
.nestree .e { --gap: calc(.1em + var(--h) * .26em); line-height: calc(1.75em + var(--h) * .56em);
  padding: var(--gap) .3em; margin: 0 .08em; border: 1.5px solid var(--c); border-radius: .3em;
  background: color-mix(in srgb, var(--c) 9%, transparent);
  color: inherit; unicode-bidi: isolate; }
.nestree .e.from { border-inline-start: 2px dotted var(--c); border-start-start-radius: 0; border-end-start-radius: 0; }
.nestree .e.on { border-inline-end: 2px dotted var(--c); border-start-end-radius: 0; border-end-end-radius: 0; }
.nestree .e:hover:not(:has(.e:hover)) { box-shadow: 0 0 0 1.5px var(--c); }
.nestree .label { font: 600 .68em/1 system-ui, sans-serif; letter-spacing: .02em; margin-inline-start: .15em;
  vertical-align: .08em; white-space: nowrap; user-select: none; -webkit-user-select: none; }
.nestree .label i { font-style: normal; font-weight: 400; display: none;
  font-variant-numeric: tabular-nums; }
.nestree .head { text-decoration: underline 2px; text-underline-offset: .18em; text-decoration-skip-ink: none; }
.nestree .head.twice { text-decoration: underline double 1.5px; }
.nestree .switch { font: .8125rem/1.5 system-ui, sans-serif; display: inline-block; margin: .25rem 0; cursor: pointer;
  user-select: none; -webkit-user-select: none; }
.nestree .switch input { margin: 0 .4em 0 0; vertical-align: -.1em; }
.nestree:has(.switch input:checked) .label i { display: inline; }
@media print { .nestree .label i { display: inline; } .nestree .switch { display: none; } }
"""
)

TREES = """
.nestree svg.tree { display: block; overflow: visible; max-width: none; direction: ltr; }
.nestree .tree text { font: 14px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, "Liberation Mono", monospace;
  fill: currentColor; }
.nestree .tree .small { font-size: 12px; } .nestree .tree .word { font-weight: 600; }
.nestree .tree .middle { text-anchor: middle; } .nestree .tree .head { text-decoration: underline; }
.nestree .tree path { fill: none; stroke: currentColor; stroke-opacity: .5; stroke-width: 1.25; }
.nestree .tree .arrow { fill: currentColor; fill-opacity: .6; stroke: none; }
.nestree .tree .entity { stroke: var(--c); stroke-opacity: 1; stroke-width: 3; }
.nestree .tree .bracket { stroke-width: 2; }
.nestree .tree .hit { stroke: transparent; stroke-width: 14; }
.nestree .tree g:hover path:not(.hit):not(.arrow) { stroke-opacity: 1; stroke-width: 3.5; }
"""

PAGE = """
:root { --page: #fff; --text: #1c2128; --quiet: #57606a; --line: #d4dae0; --panel: #f5f7f9; --link: #0b5cad; }
@media (prefers-color-scheme: dark) {
  :root { --page: #14181d; --text: #e4e8ec; --quiet: #a0a9b3; --line: #39424c; --panel: #1d2329; --link: #7fb8f2; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 1.5rem 1rem 3rem; background: var(--page); color: var(--text);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.25rem 0 .5rem; padding-top: 1rem; border-top: 1px solid var(--line);
  overflow-wrap: anywhere; }
h2 small { font-weight: 400; font-size: .875rem; color: var(--quiet); margin-inline-start: .75rem; }
header p, .note, footer { color: var(--quiet); margin: .25rem 0 .75rem; }
.note, footer { font-size: .875rem; }
a { color: var(--link); }
nav ul { columns: 14rem; margin: .25rem 0; padding-inline-start: 1.25rem; font-size: .9375rem; }
nav a { overflow-wrap: anywhere; }
footer { margin-top: 3rem; border-top: 1px solid var(--line); padding-top: 1rem; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .4rem .6rem; margin: .75rem 0; padding: 0; }
.legend li { border: 1.5px solid var(--c); border-radius: .3em; padding: .1rem .5rem; font-size: .8125rem;
  background: color-mix(in srgb, var(--c) 9%, transparent); overflow-wrap: anywhere; }
.legend b { font-weight: 600; } .legend span { color: var(--quiet); font-variant-numeric: tabular-nums; }
details { margin: .5rem 0; }
summary { cursor: pointer; color: var(--link); width: max-content; max-width: 100%; }
summary:focus-visible, .scroll:focus-visible, a:focus-visible, input:focus-visible { outline: 2px solid var(--link);
  outline-offset: 2px; }
.trees details > summary { width: auto; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
details.trees > :not(summary) { margin-inline-start: 1rem; }
.scroll { overflow-x: auto; }
.trees .scroll { padding: .5rem; background: var(--panel); border: 1px solid var(--line); border-radius: .5rem; }
.to-tree { font-size: .7em; vertical-align: .45em; line-height: 1; margin-inline-start: .25em; padding: 0 .2em;
  text-decoration: none; user-select: none; -webkit-user-select: none; }
.to-tree:hover { text-decoration: underline; }
figure { margin: .25rem 0 1rem; scroll-margin-top: 3rem; }
figure:target .scroll { border-color: var(--link); }
table { border-collapse: collapse; font-size: .9375rem; font-variant-numeric: tabular-nums; margin: .5rem 0; }
th, td { padding: .2rem .75rem; text-align: start; vertical-align: top; }
thead th { color: var(--quiet); font-weight: 500; border-bottom: 1px solid var(--line); }
tbody tr:nth-child(even) { background: var(--panel); }
td:first-child { padding-inline-start: calc(.5rem + var(--d, 0) * 1.1rem); max-width: 34rem; overflow-wrap: anywhere;
  white-space: pre-wrap; }
.num { text-align: end; white-space: nowrap; }
@media print { nav, .to-tree { display: none; } body { max-width: none; padding: 0; } .scroll { overflow: visible; }
  .trees svg { max-width: 100%; height: auto; } tr, figure { break-inside: avoid; } h2 { break-after: avoid; } }
"""
