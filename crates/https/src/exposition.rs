//! Prometheus metrics over HTTP: the text format, or the delimited protobuf format if the client
//! prefers it.
//!
//! Entry point: [`negotiate`]. Input is always text, which is converted if the client asks for
//! protobuf. Knows no metric by name and does not serve OpenMetrics.

use std::collections::HashMap;

use bytes::Bytes;

/// The media type of the text format.
pub const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores";
/// The media type of the protobuf format: `MetricFamily` messages, each after its length.
pub const PROTOBUF: &str = "application/vnd.google.protobuf; \
                            proto=io.prometheus.client.MetricFamily; encoding=delimited; \
                            escaping=underscores";

/// Returns the media type and the body for metrics in the format that an `Accept` header prefers.
/// A header that names neither format gets text, as from upstream.
#[must_use]
pub fn negotiate(accept: &str, text: String) -> (&'static str, Bytes) {
    match prefers_protobuf(accept) {
        true => (PROTOBUF, Bytes::from(to_protobuf(&text))),
        false => (TEXT, Bytes::from(text)),
    }
}

fn prefers_protobuf(accept: &str) -> bool {
    let mut clauses: Vec<(f32, bool)> = Vec::new();
    for clause in accept.split(',') {
        let mut parts = clause.split(';').map(str::trim);
        let media = parts.next().unwrap_or_default();
        let parameters: Vec<(&str, &str)> = parts.filter_map(|part| part.split_once('=')).collect();
        let of = |name: &str| parameters.iter().find(|(key, _)| *key == name).map(|(_, v)| *v);
        let quality = of("q").map_or(1.0, |text| text.parse().unwrap_or(0.0));
        let is_protobuf = media == "application/vnd.google.protobuf"
            && of("proto") == Some("io.prometheus.client.MetricFamily")
            && of("encoding") == Some("delimited");
        let is_text = media == "text/plain" && matches!(of("version"), None | Some("" | "0.0.4"));
        if is_protobuf || is_text {
            clauses.push((quality, is_protobuf));
        }
    }
    // The sort is stable: of two formats with equal quality the first one counts.
    clauses.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    clauses.first().is_some_and(|(_, is_protobuf)| *is_protobuf)
}

/// The kind of a metric, by its number in `io.prometheus.client.MetricType`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Counter = 0,
    Gauge = 1,
    Summary = 2,
    Untyped = 3,
    Histogram = 4,
}

type Labels = Vec<(String, String)>;

#[derive(Debug)]
struct Family {
    name: String,
    help: Option<String>,
    kind: Kind,
    metrics: Vec<Metric>,
    /// The index in `metrics` of each set of labels.
    index: HashMap<Labels, usize>,
}

/// One series, or all series of one histogram or summary.
#[derive(Debug, Default)]
struct Metric {
    labels: Labels,
    value: f64,
    count: u64,
    sum: f64,
    /// Upper bounds with counts, or quantiles with values.
    points: Vec<(f64, f64)>,
    timestamp: Option<i64>,
}

/// Converts metrics from the text format to delimited protobuf. Lines that are not valid are left out.
fn to_protobuf(text: &str) -> Vec<u8> {
    let mut families = Families::default();
    for line in text.lines().map(str::trim) {
        if let Some(comment) = line.strip_prefix('#') {
            families.comment(comment.trim_start());
        } else if let Some(sample) = Sample::parse(line) {
            families.add(sample);
        }
    }
    let mut bytes = Vec::new();
    for family in families.all.iter().filter(|family| !family.metrics.is_empty()) {
        let message = family.encode();
        varint(&mut bytes, message.len() as u64);
        bytes.extend(message);
    }
    bytes
}

#[derive(Debug, Default)]
struct Families {
    all: Vec<Family>,
    index: HashMap<String, usize>,
}

impl Families {
    fn named(&mut self, name: &str) -> &mut Family {
        let next = self.all.len();
        let at = *self.index.entry(name.to_owned()).or_insert(next);
        if at == next {
            self.all.push(Family {
                name: name.to_owned(),
                help: None,
                kind: Kind::Untyped,
                metrics: Vec::new(),
                index: HashMap::new(),
            });
        }
        &mut self.all[at]
    }

    fn comment(&mut self, comment: &str) {
        if let Some(rest) = comment.strip_prefix("HELP ") {
            let (name, help) = rest.split_once(' ').unwrap_or((rest, ""));
            let help = unescaped(help);
            self.named(name).help.get_or_insert(help);
        } else if let Some(rest) = comment.strip_prefix("TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap_or((rest, ""));
            self.named(name).kind = match kind.trim() {
                "counter" => Kind::Counter,
                "gauge" => Kind::Gauge,
                "summary" => Kind::Summary,
                "histogram" => Kind::Histogram,
                _ => Kind::Untyped,
            };
        }
    }

    fn kind_of(&self, name: &str) -> Option<Kind> {
        self.index.get(name).map(|at| self.all[*at].kind)
    }

    /// Adds a sample to the family that it belongs to. The samples of a histogram or summary have
    /// names with a suffix.
    fn add(&mut self, sample: Sample<'_>) {
        let suffixed = ["_bucket", "_sum", "_count"].into_iter().find_map(|suffix| {
            let name = sample.name.strip_suffix(suffix)?;
            let is_whole = matches!(self.kind_of(name), Some(Kind::Histogram | Kind::Summary));
            is_whole.then_some((name, suffix))
        });
        let Sample { name, mut labels, value, timestamp } = sample;
        let (name, suffix) = suffixed.unwrap_or((name, ""));
        let family = self.named(name);
        let bound = match (family.kind, suffix) {
            (Kind::Histogram, "_bucket") => Some("le"),
            (Kind::Summary, "") => Some("quantile"),
            _ => None,
        };
        let bound = bound.and_then(|label| {
            let at = labels.iter().position(|(name, _)| name == label)?;
            labels.remove(at).1.parse::<f64>().ok()
        });
        let metric = family.metric(labels);
        metric.timestamp = metric.timestamp.or(timestamp);
        match (suffix, bound) {
            ("_sum", _) => metric.sum = value,
            ("_count", _) => metric.count = value as u64,
            // The bucket without a bound equals the count, which has its own field.
            (_, Some(bound)) if bound == f64::INFINITY => {}
            (_, Some(bound)) => metric.points.push((bound, value)),
            _ => metric.value = value,
        }
    }
}

impl Family {
    fn metric(&mut self, labels: Labels) -> &mut Metric {
        let next = self.metrics.len();
        let at = *self.index.entry(labels.clone()).or_insert(next);
        if at == next {
            self.metrics.push(Metric { labels, ..Metric::default() });
        }
        &mut self.metrics[at]
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        text_field(&mut bytes, 1, &self.name);
        if let Some(help) = &self.help {
            text_field(&mut bytes, 2, help);
        }
        number_field(&mut bytes, 3, self.kind as u64);
        for metric in &self.metrics {
            bytes_field(&mut bytes, 4, &metric.encode(self.kind));
        }
        bytes
    }
}

impl Metric {
    fn encode(&self, kind: Kind) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (name, value) in &self.labels {
            let mut pair = Vec::new();
            text_field(&mut pair, 1, name);
            text_field(&mut pair, 2, value);
            bytes_field(&mut bytes, 1, &pair);
        }
        let mut value = Vec::new();
        let number = match kind {
            Kind::Gauge => 2,
            Kind::Counter => 3,
            Kind::Summary => 4,
            Kind::Untyped => 5,
            Kind::Histogram => 7,
        };
        if matches!(kind, Kind::Summary | Kind::Histogram) {
            number_field(&mut value, 1, self.count);
            double_field(&mut value, 2, self.sum);
            for (bound, at) in &self.points {
                let mut point = Vec::new();
                match kind {
                    Kind::Histogram => {
                        number_field(&mut point, 1, *at as u64);
                        double_field(&mut point, 2, *bound);
                    }
                    _ => {
                        double_field(&mut point, 1, *bound);
                        double_field(&mut point, 2, *at);
                    }
                }
                bytes_field(&mut value, 3, &point);
            }
        } else {
            double_field(&mut value, 1, self.value);
        }
        let timestamp = |bytes: &mut Vec<u8>| {
            if let Some(at) = self.timestamp {
                // A negative int64 is written as the unsigned number with the same bits.
                number_field(bytes, 6, at as u64);
            }
        };
        if number > 6 {
            timestamp(&mut bytes);
            bytes_field(&mut bytes, number, &value);
        } else {
            bytes_field(&mut bytes, number, &value);
            timestamp(&mut bytes);
        }
        bytes
    }
}

fn varint(to: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        to.push(number as u8 | 0x80);
        number >>= 7;
    }
    to.push(number as u8);
}

fn number_field(to: &mut Vec<u8>, field: u64, number: u64) {
    varint(to, field << 3);
    varint(to, number);
}

fn double_field(to: &mut Vec<u8>, field: u64, number: f64) {
    varint(to, field << 3 | 1);
    to.extend(number.to_le_bytes());
}

fn bytes_field(to: &mut Vec<u8>, field: u64, bytes: &[u8]) {
    varint(to, field << 3 | 2);
    varint(to, bytes.len() as u64);
    to.extend(bytes);
}

fn text_field(to: &mut Vec<u8>, field: u64, text: &str) {
    bytes_field(to, field, text.as_bytes());
}

/// One line with a value.
#[derive(Debug, PartialEq)]
struct Sample<'a> {
    name: &'a str,
    labels: Labels,
    value: f64,
    /// In milliseconds.
    timestamp: Option<i64>,
}

impl<'a> Sample<'a> {
    fn parse(line: &'a str) -> Option<Sample<'a>> {
        let end = line.find(|c: char| c == '{' || c.is_whitespace())?;
        let (name, rest) = line.split_at(end);
        let (labels, rest) = match rest.strip_prefix('{') {
            Some(rest) => labels(rest)?,
            None => (Labels::new(), rest),
        };
        let mut words = rest.split_whitespace();
        let value = words.next()?.parse().ok()?;
        let timestamp = words.next().map(str::parse).transpose().ok()?;
        (!name.is_empty()).then_some(Sample { name, labels, value, timestamp })
    }
}

/// Reads `a="b",c="d"}` and returns the labels and the text after the brace.
fn labels(mut text: &str) -> Option<(Labels, &str)> {
    let mut labels = Labels::new();
    loop {
        text = text.trim_start_matches([',', ' ']);
        if let Some(rest) = text.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (name, rest) = text.split_once("=\"")?;
        let mut is_escaped = false;
        let end = rest.find(|c: char| {
            let is_end = c == '"' && !is_escaped;
            is_escaped = c == '\\' && !is_escaped;
            is_end
        })?;
        labels.push((name.trim().to_owned(), unescaped(&rest[..end])));
        text = &rest[end + 1..];
    }
}

/// Replaces `\\`, `\"` and `\n`.
fn unescaped(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => match characters.next() {
                Some('n') => plain.push('\n'),
                Some(other) => plain.push(other),
                None => plain.push('\\'),
            },
            other => plain.push(other),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_preferred_format_of_an_accept_header_is_served() {
        let protobuf = "application/vnd.google.protobuf;\
                        proto=io.prometheus.client.MetricFamily;encoding=delimited";
        for (accept, expected) in [
            ("", TEXT),
            ("*/*", TEXT),
            ("application/json", TEXT),
            (protobuf, PROTOBUF),
            ("application/vnd.google.protobuf", TEXT),
            (&*format!("{protobuf};q=0.7,text/plain;version=0.0.4;q=0.3"), PROTOBUF),
            (&*format!("{protobuf};q=0.2,text/plain;version=0.0.4;q=0.3"), TEXT),
            (&*format!("text/plain, {protobuf}"), TEXT),
            (&*format!("application/openmetrics-text;version=1.0.0,{protobuf};q=0.5"), PROTOBUF),
            (&*protobuf.replace("delimited", "text"), TEXT),
        ] {
            assert_eq!(negotiate(accept, String::new()).0, expected, "{accept}");
        }
    }

    #[test]
    fn counters_and_labels_are_converted() {
        let text = "# HELP a_total What\\nit is.\n# TYPE a_total counter\n\
                    a_total{code=\"2\\\"0\",verb=\"x\"} 3\n";
        let mut family = Vec::new();
        text_field(&mut family, 1, "a_total");
        text_field(&mut family, 2, "What\nit is.");
        number_field(&mut family, 3, 0);
        let mut metric = Vec::new();
        for (name, value) in [("code", "2\"0"), ("verb", "x")] {
            let mut pair = Vec::new();
            text_field(&mut pair, 1, name);
            text_field(&mut pair, 2, value);
            bytes_field(&mut metric, 1, &pair);
        }
        let mut counter = Vec::new();
        double_field(&mut counter, 1, 3.0);
        bytes_field(&mut metric, 3, &counter);
        bytes_field(&mut family, 4, &metric);
        let mut expected = vec![family.len() as u8];
        expected.extend(family);
        assert_eq!(to_protobuf(text), expected);
    }

    #[test]
    fn the_series_of_a_histogram_become_one_metric() {
        let text = "# TYPE h histogram\n\
                    h_bucket{v=\"a\",le=\"0.5\"} 1\nh_bucket{v=\"a\",le=\"+Inf\"} 2\n\
                    h_sum{v=\"a\"} 3.5\nh_count{v=\"a\"} 2\n\
                    # TYPE h_count gauge\n";
        let mut bucket = Vec::new();
        number_field(&mut bucket, 1, 1);
        double_field(&mut bucket, 2, 0.5);
        let mut histogram = Vec::new();
        number_field(&mut histogram, 1, 2);
        double_field(&mut histogram, 2, 3.5);
        bytes_field(&mut histogram, 3, &bucket);
        let mut families = Families::default();
        for line in text.lines() {
            match line.strip_prefix("# ") {
                Some(comment) => families.comment(comment),
                None => families.add(Sample::parse(line).unwrap()),
            }
        }
        let family = &families.all[0];
        assert_eq!((family.kind, family.metrics.len()), (Kind::Histogram, 1));
        let mut expected = Vec::new();
        let mut pair = Vec::new();
        text_field(&mut pair, 1, "v");
        text_field(&mut pair, 2, "a");
        bytes_field(&mut expected, 1, &pair);
        bytes_field(&mut expected, 7, &histogram);
        assert_eq!(family.metrics[0].encode(family.kind), expected);
    }

    #[test]
    fn lines_that_are_not_metrics_are_left_out() {
        for line in
            ["", "name", "name{a=\"b\" 1", "name{a=b} 1", "name x", "{a=\"b\"} 1", "n{a=\"\\"]
        {
            assert_eq!(Sample::parse(line), None, "{line}");
        }
        let sample = Sample::parse("n{} +Inf -5").unwrap();
        assert_eq!((sample.value, sample.timestamp), (f64::INFINITY, Some(-5)));
        assert!(to_protobuf("# TYPE a counter\n# HELP\n#\nx{ 1\n").is_empty());
    }
}
