//! The formats of metrics over HTTP: [`negotiate`] chooses one and encodes.

use crate::family::Family;
use crate::{protobuf, text};

/// The media type of the text format.
pub const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores";
/// The media type of the protobuf format: `MetricFamily` messages, each after its length.
pub const PROTOBUF: &str = "application/vnd.google.protobuf; \
                            proto=io.prometheus.client.MetricFamily; encoding=delimited; \
                            escaping=underscores";

/// Returns the media type and the body for families in the format that an `Accept` header prefers.
/// A header that names neither format gets text, as from upstream.
#[must_use]
pub fn negotiate(accept: &str, families: &[Family]) -> (&'static str, Vec<u8>) {
    match prefers_protobuf(accept) {
        true => (PROTOBUF, protobuf::encode(families)),
        false => (TEXT, text::render(families).into_bytes()),
    }
}

fn prefers_protobuf(accept: &str) -> bool {
    let mut clauses: Vec<(f32, bool)> = Vec::new();
    for clause in accept.split(',') {
        let mut parts = clause.split(';').map(str::trim);
        let media = parts.next().unwrap_or_default();
        let parameters: Vec<(&str, &str)> = parts.filter_map(|part| part.split_once('=')).collect();
        let parameter =
            |name: &str| parameters.iter().find(|(key, _)| *key == name).map(|(_, value)| *value);
        let quality = parameter("q").map_or(1.0, |text| text.parse().unwrap_or(0.0));
        let is_protobuf = media == "application/vnd.google.protobuf"
            && parameter("proto") == Some("io.prometheus.client.MetricFamily")
            && parameter("encoding") == Some("delimited");
        let is_text =
            media == "text/plain" && matches!(parameter("version"), None | Some("" | "0.0.4"));
        if is_protobuf || is_text {
            clauses.push((quality, is_protobuf));
        }
    }
    // The sort is stable: of two formats with equal quality the first one counts.
    clauses.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    clauses.first().is_some_and(|(_, is_protobuf)| *is_protobuf)
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
            assert_eq!(negotiate(accept, &[]).0, expected, "{accept}");
        }
    }
}
