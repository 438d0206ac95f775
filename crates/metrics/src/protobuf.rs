//! Prometheus' delimited protobuf format: [`encode`], `io.prometheus.client.MetricFamily` messages, each after
//! its length. The field numbers are those of that package. Does not write exemplars or native histograms.

use crate::family::{Distribution, Family, Kind, Labels, Sample, Series};

/// Encodes families as messages.
#[must_use]
pub fn encode(families: &[Family]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for family in families.iter().filter(|family| !family.is_empty()) {
        let message = encode_family(family);
        varint(&mut bytes, message.len() as u64);
        bytes.extend(message);
    }
    bytes
}

fn encode_family(family: &Family) -> Vec<u8> {
    let Family { name, help, series } = family;
    let mut bytes = Vec::new();
    text_field(&mut bytes, 1, name);
    if !help.is_empty() {
        text_field(&mut bytes, 2, help);
    }
    let (metric_type, metrics): (u64, Vec<Vec<u8>>) = match series {
        Series::Numbers(Kind::Counter, samples) => {
            (0, samples.iter().map(|sample| number_metric(sample, 3)).collect())
        }
        Series::Numbers(Kind::Gauge, samples) => {
            (1, samples.iter().map(|sample| number_metric(sample, 2)).collect())
        }
        Series::Histograms(all) => {
            (4, all.iter().map(|(labels, one)| histogram_metric(labels, one)).collect())
        }
    };
    number_field(&mut bytes, 3, metric_type);
    for metric in metrics {
        bytes_field(&mut bytes, 4, &metric);
    }
    bytes
}

/// Encodes a `Metric` whose value is the message `field`.
fn number_metric(sample: &Sample, field: u64) -> Vec<u8> {
    let mut bytes = encode_labels(&sample.labels);
    let mut value = Vec::new();
    double_field(&mut value, 1, sample.value);
    bytes_field(&mut bytes, field, &value);
    if let Some(at) = sample.at {
        // A negative int64 is written as the unsigned number with the same bits.
        number_field(&mut bytes, 6, at.0 as u64);
    }
    bytes
}

fn histogram_metric(labels: &Labels, distribution: &Distribution) -> Vec<u8> {
    let mut value = Vec::new();
    number_field(&mut value, 1, distribution.count);
    double_field(&mut value, 2, distribution.sum);
    // The bucket without a bound equals the count.
    for (bound, count) in distribution.buckets() {
        let mut bucket = Vec::new();
        number_field(&mut bucket, 1, count);
        double_field(&mut bucket, 2, bound);
        bytes_field(&mut value, 3, &bucket);
    }
    let mut bytes = encode_labels(labels);
    bytes_field(&mut bytes, 7, &value);
    bytes
}

fn encode_labels(labels: &Labels) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, value) in labels {
        let mut pair = Vec::new();
        text_field(&mut pair, 1, name);
        text_field(&mut pair, 2, value);
        bytes_field(&mut bytes, 1, &pair);
    }
    bytes
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::UnixMillis;

    /// Returns the bytes of a hexadecimal dump; spaces separate fields for the reader.
    fn hex(dump: &str) -> Vec<u8> {
        let digits: Vec<u8> = dump.bytes().filter(u8::is_ascii_hexdigit).collect();
        let byte = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap();
        digits.chunks(2).map(byte).collect()
    }

    #[test]
    fn numbers_are_encoded_with_labels_and_time() {
        let sample = Sample::new(&[("v", "\"")], 3.0).at(UnixMillis(-1));
        let counter = Family::new(Kind::Counter, "a", "H\n", [sample.clone()]);
        let metric = "0a06 0a0176 120122";
        let value = "09 0000000000000840";
        let time = "30 ffffffffffffffffff01";
        let expected = format!("29 0a0161 1202480a 1800 221e {metric} 1a09 {value} {time}");
        assert_eq!(encode(&[counter]), hex(&expected));
        let gauge = Family::new(Kind::Gauge, "a", "", [Sample { at: None, ..sample }]);
        let empty = Family::new(Kind::Gauge, "b", "", []);
        let expected = format!("1a 0a0161 1801 2213 {metric} 1209 {value}");
        assert_eq!(encode(&[empty, gauge]), hex(&expected));
    }

    #[test]
    fn a_histogram_is_one_metric_with_its_buckets() {
        let mut distribution = Distribution::new(&[0.5]);
        distribution.observe(0.5);
        distribution.observe(3.0);
        let family = Family::histogram("h", "", [(Vec::new(), distribution)]);
        let bucket = "0801 11 000000000000e03f";
        let histogram = format!("0802 11 0000000000000c40 1a0b {bucket}");
        let expected = format!("21 0a0168 1804 221a 3a18 {histogram}");
        assert_eq!(encode(&[family]), hex(&expected));
    }

    #[test]
    fn lengths_above_127_take_more_than_one_byte() {
        let name = "n".repeat(300);
        let family = Family::new(Kind::Gauge, name, "", [Sample::new(&[], 0.0)]);
        let bytes = encode(&[family]);
        assert_eq!(bytes[..2], [0xbe, 0x02], "318 bytes follow");
        assert_eq!(bytes.len(), 2 + 318);
    }
}
