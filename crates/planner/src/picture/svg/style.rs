//! Colours, patterns and type of the SVG, for light and dark.
//!
//! Main entries: [`sheet`] and [`PATTERNS`]. The first seven colours are Okabe and Ito's, which are
//! distinct with any colour vision; the others differ from them in lightness. Values are written
//! out instead of using CSS variables, which some SVG viewers do not support.

use std::fmt::Write as _;

/// The number of colours before patterns distinguish owners.
pub(in super::super) const COLOURS: usize = 12;

/// The number of patterns over the colours.
pub(in super::super) const PATTERN_COUNT: usize = 3;

/// Ground and letters, in light and in dark.
const PALETTE: [[&str; 4]; COLOURS] = [
    ["#0072b2", "#ffffff", "#2f8fd0", "#06121c"],
    ["#e69f00", "#241800", "#e69f00", "#1c1300"],
    ["#009e73", "#ffffff", "#14a97f", "#04140f"],
    ["#cc79a7", "#2a0f1e", "#cc79a7", "#1f0a16"],
    ["#56b4e9", "#06202f", "#7cc8f3", "#06202f"],
    ["#d55e00", "#ffffff", "#e0691a", "#1d0c00"],
    ["#f0e442", "#2b2800", "#f0e442", "#2b2800"],
    ["#332288", "#ffffff", "#7466d6", "#ffffff"],
    ["#882255", "#ffffff", "#a83a70", "#ffffff"],
    ["#999933", "#1d1d00", "#a3a33c", "#1d1d00"],
    ["#7f5539", "#ffffff", "#9a6b4b", "#ffffff"],
    ["#a6d96a", "#16240a", "#b4e07e", "#16240a"],
];

/// Patterns by id: lines for the shared pool, a grid for what is reserved, and three to lay over
/// colours.
pub(in super::super) const PATTERNS: &str = concat!(
    "<pattern id=\"berth-shared\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\">",
    "<rect class=\"sg\" width=\"6\" height=\"6\"/>",
    "<path class=\"sl\" d=\"M-1 1l2-2M0 6l6-6M5 7l2-2\"/></pattern>\n",
    "<pattern id=\"berth-reserved\" width=\"5\" height=\"5\" patternUnits=\"userSpaceOnUse\">",
    "<rect class=\"rg\" width=\"5\" height=\"5\"/>",
    "<path class=\"rl\" d=\"M0 0l5 5M5 0l-5 5\"/></pattern>\n",
    "<pattern id=\"berth-huge\" width=\"4\" height=\"4\" patternUnits=\"userSpaceOnUse\">",
    "<path class=\"hl\" d=\"M2 0v4\"/></pattern>\n",
    "<pattern id=\"berth-over1\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\">",
    "<path class=\"ol\" d=\"M-1 1l2-2M0 6l6-6M5 7l2-2\"/></pattern>\n",
    "<pattern id=\"berth-over2\" width=\"5\" height=\"5\" patternUnits=\"userSpaceOnUse\">",
    "<circle class=\"od\" cx=\"2.5\" cy=\"2.5\" r=\"1.1\"/></pattern>\n",
    "<pattern id=\"berth-over3\" width=\"5\" height=\"5\" patternUnits=\"userSpaceOnUse\">",
    "<path class=\"ol\" d=\"M0 2.5h5\"/></pattern>\n",
);

const SHAPES: &str = "\
.berth{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'Noto Sans','DejaVu Sans',sans-serif;\
font-variant-numeric:tabular-nums}
.berth .ti{font-size:20px;font-weight:650}
.berth .fa{font-size:12.5px}
.berth .na{font-size:12.5px;font-weight:600}
.berth .ns{font-size:10.5px;font-weight:600}
.berth .no{font-size:11px}
.berth .nt{font-size:9.5px}
.berth .le{font-size:13px;font-weight:600}
.berth .r{text-anchor:end}
.berth .m{text-anchor:middle}
.berth .w{font-weight:700}
.berth .ol{stroke:#fff;stroke-opacity:.75;stroke-width:1.6;fill:none}
.berth .od{fill:#fff;fill-opacity:.85}
.berth .v1{fill:url(#berth-over1)!important}
.berth .v2{fill:url(#berth-over2)!important}
.berth .v3{fill:url(#berth-over3)!important}
.berth .v~text{paint-order:stroke;stroke-width:3.5px;stroke-linejoin:round}
.berth .sh rect{fill:url(#berth-shared)}
.berth .re rect{fill:url(#berth-reserved)}
.berth .hp{fill:url(#berth-huge)}
.berth .gr{fill:none;stroke-width:1.5;stroke-dasharray:6 4}
.berth .dim{opacity:.18}
";

/// Selectors and what they are in light and in dark.
const TONES: [(&str, &str, &str); 14] = [
    (".bg", "fill:#fff;stroke:#d8dee4", "fill:#0d1117;stroke:#30363d"),
    (".so", "fill:#f3f5f8;stroke:#d8dee4", "fill:#161b22;stroke:#30363d"),
    (".nd", "fill:#fff;stroke:#cbd3db", "fill:#0d1117;stroke:#3a424c"),
    (".ca", "fill:#eef1f5", "fill:#1a2029"),
    (".gr", "stroke:#6e7781", "stroke:#8b949e"),
    (".co", "fill:#d8dee6", "fill:#2c343e"),
    (".fr rect", "fill:#fff", "fill:#0d1117"),
    (".tx", "fill:#1b2026", "fill:#e6edf3"),
    (".mu,.fr text", "fill:#66707b", "fill:#9aa4af"),
    (".sg", "fill:#dfe7f0", "fill:#263446"),
    (".sl", "stroke:#b4c3d4;stroke-width:1.2", "stroke:#42566e;stroke-width:1.2"),
    (".rg", "fill:#c3cad2", "fill:#4a525c"),
    (".rl", "stroke:#a1abb6;stroke-width:.8", "stroke:#6a737e;stroke-width:.8"),
    (".hl,.ba", "stroke:#b9c2cc;fill:none", "stroke:#4a535e;fill:none"),
];

/// Returns the style sheet of a picture; it applies only inside an element of class `berth`.
pub(in super::super) fn sheet() -> String {
    let mut css = String::from(SHAPES);
    tones(&mut css, 0);
    css.push_str("@media (prefers-color-scheme:dark){\n");
    tones(&mut css, 1);
    css.push_str("}\n");
    css
}

fn tones(css: &mut String, scheme: usize) {
    for (selectors, light, dark) in TONES {
        let selectors: Vec<String> =
            selectors.split(',').map(|selector| format!(".berth {selector}")).collect();
        let rule = if scheme == 0 { light } else { dark };
        let _ = writeln!(css, "{}{{{rule}}}", selectors.join(","));
    }
    let pools = [(".sh text", "#33414f", "#c6d3e1"), (".re text", "#2c333a", "#e0e6ec")];
    for (selector, light, dark) in pools {
        let _ =
            writeln!(css, ".berth {selector}{{fill:{}}}", if scheme == 0 { light } else { dark });
    }
    for (number, colours) in PALETTE.iter().enumerate() {
        let (ground, letters) = (colours[2 * scheme], colours[2 * scheme + 1]);
        let _ = writeln!(
            css,
            ".berth .o{number} rect{{fill:{ground}}}.berth .o{number} text{{fill:{letters}}}\
             .berth .o{number} .v~text{{stroke:{ground}}}"
        );
    }
}
