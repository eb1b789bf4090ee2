"""How the page of a trajectory looks, on light and on dark screens."""

STYLE = """
:root { color-scheme: light dark;
  --paper: #fdfdfc; --ink: #1d2126; --faint: #626a73; --line: #d9dce0; --box: #f3f4f5;
  --good: #176b34; --good-box: #dcf2e3; --fair: #7a5200; --fair-box: #fbeccb; --bad: #9b1c1c; --bad-box: #fbdfdf;
  --mark: #1f5fbf; }
@media (prefers-color-scheme: dark) { :root {
  --paper: #15181c; --ink: #e2e5e9; --faint: #98a1ab; --line: #343a41; --box: #1e2227;
  --good: #7ed59b; --good-box: #173622; --fair: #e8be6a; --fair-box: #3a2d10; --bad: #f19a9a; --bad-box: #451c1c;
  --mark: #7fb0f5; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.35rem; margin: 0 0 1rem; overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: .2rem 1rem; margin: 0 0 1.2rem; }
dt { color: var(--faint); } dd { margin: 0; overflow-wrap: anywhere; }
figure { margin: 0 0 1.5rem; } figcaption { color: var(--faint); font-size: .85rem; }
pre, code { font: 13px/1.45 ui-monospace, monospace; }
pre { background: var(--box); border: 1px solid var(--line); border-radius: 6px; padding: .5rem .7rem; margin: .4rem 0;
  overflow: auto; max-height: 32rem; white-space: pre-wrap; overflow-wrap: anywhere; }
details { margin: .35rem 0; } summary { cursor: pointer; overflow-wrap: anywhere; }
details.turn { border: 1px solid var(--line); border-radius: 8px; padding: .5rem .9rem; margin: .8rem 0; }
details.turn > summary { font-size: 1.02rem; }
.times { color: var(--faint); font-size: .85rem; float: right; }
.thoughts { font-style: italic; white-space: pre-wrap; overflow-wrap: anywhere; } .thoughts pre { font-style: normal; }
.said { color: var(--faint); border-left: 3px solid var(--line); padding-left: .7rem; white-space: pre-wrap;
  overflow-wrap: anywhere; }
.arrow { color: var(--faint); margin: .3rem 0 0; font-size: .85rem; }
dl.values { margin: .2rem 0; } dl.values pre { margin: 0; }
.badge { display: inline-block; border-radius: 999px; padding: 0 .6em; font-size: .82rem; font-weight: 600; }
.good { color: var(--good); background: var(--good-box); }
.fair { color: var(--fair); background: var(--fair-box); }
.bad { color: var(--bad); background: var(--bad-box); }
.diff { padding: .5rem 0; } .diff span { display: block; padding: 0 .7rem; min-height: 1.45em; }
.plus { background: var(--good-box); color: var(--good); } .minus { background: var(--bad-box); color: var(--bad); }
.hunk { color: var(--mark); }
.plot { width: 100%; height: auto; } .plot text { fill: var(--faint); font: 11px system-ui, sans-serif; }
.plot .grid { stroke: var(--line); } .plot .win { stroke: var(--good); stroke-dasharray: 5 4; }
.plot .best { fill: none; stroke: var(--mark); stroke-width: 2; }
.plot circle { stroke-width: 2; } .plot .profile { fill: var(--paper); stroke: var(--mark); }
.plot .won { fill: var(--good); stroke: var(--good); } .plot .lost { fill: var(--fair); stroke: var(--fair); }
"""
