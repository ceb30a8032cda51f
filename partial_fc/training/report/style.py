"""Style sheet of the pages for light and dark mode, wide and narrow screens, and print.

The eight line colors have a contrast of at least 3 to both backgrounds. Those with the same dash pattern also differ in
lightness, for color-blind readers and gray printers.
"""

COLORS = {  # name -> (light, dark)
    "paper": ("#fcfcfa", "#14171a"),
    "ink": ("#1c2126", "#e4e6e3"),
    "soft": ("#59616a", "#a0a8af"),
    "rule": ("#dcded8", "#343a3f"),
    "notice": ("#8a3b00", "#f0a66b"),
    "shade": ("#f1f2ed", "#1d2125"),
    "line-0": ("#00559a", "#4b9be8"),
    "line-1": ("#d1570a", "#f08a3c"),
    "line-2": ("#1f9e78", "#86e5c2"),
    "line-3": ("#5b2a86", "#b79af2"),
    "line-4": ("#a87900", "#e8c547"),
    "line-5": ("#3593c0", "#8fd8f5"),
    "line-6": ("#c23a7c", "#f07fb0"),
    "line-7": ("#2c2f33", "#f4f4f0"),
}
PAPER, SOFT, RULE = (COLORS[name][0] for name in ("paper", "soft", "rule"))
LINES = [light for name, (light, _) in COLORS.items() if name.startswith("line-")]


def _variables(mode: int) -> str:
    return " ".join(f"--{name}: {colors[mode]};" for name, colors in COLORS.items())


# The charts are drawn in the light colors; these rules replace them by the variables, which depend on the mode.
_CHARTS = "\n".join(
    f"svg [{attribute}='{light}'] {{ {attribute}: var(--{name}); }}"
    for name, (light, _) in COLORS.items()
    for attribute in ("stroke", "fill")
)

STYLE = (
    f"""
:root {{ color-scheme: light dark; {_variables(0)} }}
@media screen and (prefers-color-scheme: dark) {{ :root {{ {_variables(1)} }} }}
{_CHARTS}
"""
    + """
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0 auto; padding: 2.5rem 1.5rem 3rem; max-width: 72rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Liberation Sans", sans-serif;
  font-variant-numeric: tabular-nums; overflow-wrap: anywhere;
}
h1, h2, h3, h4, p, ul, dl, dd, figure { margin: 0; padding: 0; }
ul { list-style: none; }
h1 { font-size: 1.9rem; line-height: 1.2; font-weight: 650; letter-spacing: -0.01em; }
h2 { margin-bottom: 1rem; padding-top: 1rem; border-top: 1px solid var(--rule); font-size: 1.25rem; font-weight: 650; }
h3 { font-size: 1rem; font-weight: 650; }
h4 { font-size: 0.95rem; font-weight: 600; }
section { margin-top: 2.75rem; }
.kind, .soft, dt, small, caption, footer, .caption { color: var(--soft); font-size: 0.875rem; }
.lead { margin-top: 0.5rem; max-width: 46rem; color: var(--soft); }
.none { color: var(--soft); }
nav { display: flex; flex-wrap: wrap; gap: 0.25rem 1.25rem; margin-top: 1rem; font-size: 0.9rem; }
a { color: var(--line-0); text-underline-offset: 0.2em; }
.notices { margin-top: 1.5rem; padding: 0.75rem 1rem; background: var(--shade); color: var(--notice); }

.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(14.5rem, 1fr)); gap: 2rem 2.5rem; }
.big { margin: 0.1rem 0 0.5rem; font-size: 2.1rem; line-height: 1.15; font-weight: 600; letter-spacing: -0.02em; }
.big small { font-size: 1rem; font-weight: 400; letter-spacing: 0; }
.big.none { font-size: 1.25rem; font-weight: 400; line-height: 1.9; }
dl > div { display: flex; justify-content: space-between; gap: 1rem; padding: 0.2rem 0; break-inside: avoid; }
dt { flex: none; }
dd { text-align: right; font-size: 0.9rem; }
.run {
  display: grid; grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr)); gap: 1.25rem 2rem; margin-top: 2rem;
}
.run > div { display: block; padding: 0; }
.run dd { text-align: left; font-size: 1.2rem; font-weight: 600; }
.run dd.none { font-size: 1rem; font-weight: 400; }
.columns { columns: 20rem; column-gap: 3rem; }
.columns > div { flex-wrap: wrap; gap: 0 1rem; border-bottom: 1px solid var(--rule); }
.columns dd { margin-left: auto; text-align: left; }
.mono dd { font-family: ui-monospace, "SF Mono", Consolas, "Liberation Mono", monospace; font-size: 0.8125rem; }

.charts, .kinds { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); }
.charts { gap: 2.25rem 3rem; }
.chart { break-inside: avoid; min-width: 0; }
.chart figcaption { margin-bottom: 0.5rem; }
.chart p { margin-top: 0.25rem; }
.chart > svg { display: block; width: 100%; height: auto; overflow: visible; }
.legend { display: flex; flex-wrap: wrap; gap: 0.1rem 1rem; font-size: 0.875rem; }
.swatch { width: 1.6rem; height: 0.62rem; margin-right: 0.4rem; }
svg text { font-size: 11.5px; paint-order: stroke; stroke: var(--paper); stroke-width: 3px; }
svg path { stroke-linejoin: round; }

#pairs h3 { margin-top: 1.5rem; }
.kinds { gap: 1.5rem 3rem; margin-top: 0.75rem; }
.kinds p { margin-top: 0.75rem; }
.pairs { display: grid; grid-template-columns: repeat(auto-fill, minmax(8rem, 1fr)); gap: 1rem; margin-top: 0.6rem; }
.pairs li { break-inside: avoid; }
.images { display: flex; gap: 2px; }
.images > * { flex: 1; min-width: 0; width: 50%; height: auto; aspect-ratio: 1; object-fit: cover; }
.images > * { background: var(--shade); }
.caption { display: block; margin-top: 0.2rem; }
.caption b { color: var(--ink); font-weight: 600; }

.wide { overflow-x: auto; margin-bottom: 1.5rem; }
table { border-collapse: collapse; width: 100%; font-size: 0.875rem; white-space: nowrap; }
caption { text-align: left; padding-bottom: 0.3rem; color: var(--ink); font-weight: 600; }
th, td { padding: 0.3rem 0 0.3rem 1.25rem; text-align: right; border-bottom: 1px solid var(--rule); font-weight: 400; }
th { color: var(--soft); }
th:first-child, td:first-child { padding-left: 0; text-align: left; }
footer { margin-top: 3rem; padding-top: 1rem; border-top: 1px solid var(--rule); }

@media (max-width: 40rem) {
  body { padding: 1.5rem 1rem 2rem; }
  h1 { font-size: 1.5rem; }
  .cards { gap: 1.5rem; }
  svg text { font-size: 13px; }
}
@media print {
  :root { color-scheme: light; --paper: #fff; }
  body { max-width: none; padding: 0; font-size: 10pt; }
  nav { display: none; }
  .charts { grid-template-columns: 1fr 1fr; }
  .wide { overflow: visible; }
}
"""
)
