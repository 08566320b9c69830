"""How the page of a report looks, in the light and in the dark. Texts keep a contrast of 4.5, lines and marks of 3."""

STYLE = """\
:root { color-scheme: light dark; --back: #fff; --text: #1b1f24; --faint: #59636e; --grid: #d8dee4; --panel: #f6f8fa;
  --alarm: #9a3412; --s0: #0757ba; --s1: #b3470f; --s2: #1a7f37; }
@media (prefers-color-scheme: dark) {
  :root { --back: #0f1318; --text: #e6eaef; --faint: #a0aab4; --grid: #333b44; --panel: #181d24;
    --alarm: #ffb17a; --s0: #6cb0ff; --s1: #ff9d5c; --s2: #56d477; }
}
body { margin: 0; background: var(--back); color: var(--text); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 1360px; margin: auto; padding: 1rem; }
h1 { font-size: 1.5rem; overflow-wrap: anywhere; }
.verdict { font-size: 1.25rem; font-weight: 600; }
.warning { border-left: 4px solid var(--alarm); padding-left: .75rem; }
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 460px), 1fr)); gap: 1rem; }
figure { margin: 0; padding: .75rem; min-width: 0; background: var(--panel); border-radius: 8px; }
figcaption, caption { font-weight: 600; text-align: left; padding-bottom: .25rem; }
figure > svg { width: 100%; height: auto; }
svg text { fill: var(--faint); font-size: 13px; }
.grid { stroke: var(--grid); }
.line { fill: none; stroke-width: 2; }
.s0 { stroke: var(--s0); }
.s1 { stroke: var(--s1); stroke-dasharray: 7 3; }
.s2 { stroke: var(--s2); stroke-dasharray: 2 3; }
.mark { stroke: none; } .mark.s0 { fill: var(--s0); } .mark.s1 { fill: var(--s1); } .mark.s2 { fill: var(--s2); }
.legend { display: flex; flex-wrap: wrap; gap: .25rem 1rem; margin: 0; padding: 0; list-style: none; }
.legend svg { margin-right: .35rem; vertical-align: -2px; }
.scroll { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .75rem; border-bottom: 1px solid var(--grid); text-align: right; white-space: nowrap; }
th:first-child { text-align: left; }
tbody th { font-weight: 400; }
.texts td { text-align: left; white-space: normal; overflow-wrap: anywhere; }
"""
