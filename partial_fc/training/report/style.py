"""Style sheet of the pages for light and dark mode, wide and narrow screens, and print: these colors and page.css.

The eight line colors have a contrast of at least 3 to both backgrounds. Colors that share a dash pattern also differ in
lightness, for color-blind readers and gray printers.
"""

from importlib.resources import files

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


# Charts are drawn in the light colors; these rules replace them with variables, which depend on the mode.
_CHARTS = "\n".join(
    f"svg [{attribute}='{light}'] {{ {attribute}: var(--{name}); }}"
    for name, (light, _) in COLORS.items()
    for attribute in ("stroke", "fill")
)

STYLE = f"""
:root {{ color-scheme: light dark; {_variables(0)} }}
@media screen and (prefers-color-scheme: dark) {{ :root {{ {_variables(1)} }} }}
{_CHARTS}

{files(__package__).joinpath("page.css").read_text(encoding="utf-8")}"""
