//! Prometheus' text format, version 0.0.4: [`render`]. Families and series keep their order.

use std::fmt::Write as _;

use crate::family::{Family, Kind, Labels, Series};

/// Writes families as text.
#[must_use]
pub fn render(families: &[Family]) -> String {
    let mut text = String::new();
    for family in families.iter().filter(|family| !family.is_empty()) {
        write_family(&mut text, family);
    }
    text
}

fn write_family(text: &mut String, family: &Family) {
    let Family { name, help, series } = family;
    let kind = match series {
        Series::Numbers(Kind::Counter, _) => "counter",
        Series::Numbers(Kind::Gauge, _) => "gauge",
        Series::Histograms(_) => "histogram",
    };
    if !help.is_empty() {
        let help = help.replace('\\', r"\\").replace('\n', r"\n");
        let _ = writeln!(text, "# HELP {name} {help}");
    }
    let _ = writeln!(text, "# TYPE {name} {kind}");
    match series {
        Series::Numbers(_, samples) => {
            for sample in samples {
                let (labels, value) = (shown(&sample.labels, None), number(sample.value));
                let _ = write!(text, "{name}{labels} {value}");
                if let Some(at) = sample.at {
                    let _ = write!(text, " {}", at.0);
                }
                text.push('\n');
            }
        }
        Series::Histograms(all) => {
            for (labels, distribution) in all {
                for (bound, count) in distribution.buckets() {
                    let labels = shown(labels, Some(&number(bound)));
                    let _ = writeln!(text, "{name}_bucket{labels} {count}");
                }
                let (count, sum) = (distribution.count, number(distribution.sum));
                let unbounded = shown(labels, Some("+Inf"));
                let labels = shown(labels, None);
                let _ = writeln!(text, "{name}_bucket{unbounded} {count}");
                let _ = writeln!(text, "{name}_sum{labels} {sum}\n{name}_count{labels} {count}");
            }
        }
    }
}

/// Formats a number as Prometheus reads it; Rust writes infinity differently.
fn number(value: f64) -> String {
    match value {
        f64::INFINITY => "+Inf".to_owned(),
        f64::NEG_INFINITY => "-Inf".to_owned(),
        value => value.to_string(),
    }
}

/// Formats `{a="b",le="1"}`, or nothing if there are no labels.
fn shown(labels: &Labels, bound: Option<&str>) -> String {
    let escaped =
        |value: &str| value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n");
    let pairs = labels.iter().map(|(name, value)| (*name, value.as_str()));
    let shown: Vec<String> = pairs
        .chain(bound.map(|bound| ("le", bound)))
        .map(|(name, value)| format!("{name}=\"{}\"", escaped(value)))
        .collect();
    if shown.is_empty() { String::new() } else { format!("{{{}}}", shown.join(",")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::{Distribution, Sample, UnixMillis};

    #[test]
    fn families_are_written_in_their_order() {
        let mut took = Distribution::new(&[0.5, 1.0]);
        for seconds in [0.25, 0.75, 2.0] {
            took.observe(seconds);
        }
        let families = [
            Family::new(
                Kind::Counter,
                "b_total",
                "Errors\nby \\ cause.",
                [
                    Sample::new(&[("cause", "a \"b\"\n\\")], 1.0),
                    Sample::new(&[("cause", "c")], 41.0),
                ],
            ),
            Family::new(Kind::Gauge, "never", "No series.", []),
            Family::new(
                Kind::Gauge,
                "a",
                "",
                [
                    Sample::new(&[], 1.5).at(UnixMillis(2003)),
                    Sample::new(&[], f64::INFINITY),
                    Sample::new(&[], f64::NAN),
                ],
            ),
            Family::histogram("h_seconds", "Time.", [(vec![("op", "run")], took)]),
        ];
        let expected = r#"# HELP b_total Errors\nby \\ cause.
# TYPE b_total counter
b_total{cause="a \"b\"\n\\"} 1
b_total{cause="c"} 41
# TYPE a gauge
a 1.5 2003
a +Inf
a NaN
# HELP h_seconds Time.
# TYPE h_seconds histogram
h_seconds_bucket{op="run",le="0.5"} 1
h_seconds_bucket{op="run",le="1"} 2
h_seconds_bucket{op="run",le="+Inf"} 3
h_seconds_sum{op="run"} 3
h_seconds_count{op="run"} 3
"#;
        assert_eq!(render(&families), expected);
    }
}
