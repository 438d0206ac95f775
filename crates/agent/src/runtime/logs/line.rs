//! One line of a log in the CRI format: [`Line`]. Parses text; reads no file.
//!
//! ```text
//! 2016-10-06T00:17:09.669794202Z stdout P the beginning of a line that was too long
//! 2016-10-06T00:17:09.669794203Z stdout F  and its end
//! ```

use objects::timestamp::Timestamp;
use thiserror::Error;

/// The stream that a line was written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
}

/// A parsed line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line<'a> {
    pub time: Timestamp,
    /// The time in its original format.
    time_text: &'a str,
    pub stream: Stream,
    /// True if the next line continues this one.
    pub partial: bool,
    /// The container's output, without a newline.
    pub text: &'a [u8],
}

/// An error in the format of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ParseLineError {
    #[error("the time is missing or not RFC 3339")]
    Time,
    #[error("the stream is neither stdout nor stderr")]
    Stream,
    #[error("the tag is missing")]
    Tag,
}

impl<'a> Line<'a> {
    /// Parses a line without its newline.
    pub fn parse(line: &'a [u8]) -> Result<Line<'a>, ParseLineError> {
        let (time, rest) = word(line).ok_or(ParseLineError::Time)?;
        let time_text = std::str::from_utf8(time).map_err(|_| ParseLineError::Time)?;
        let time = Timestamp::parse(time_text).map_err(|_| ParseLineError::Time)?;
        let (stream, rest) = word(rest).ok_or(ParseLineError::Stream)?;
        let stream = match stream {
            b"stdout" => Stream::Stdout,
            b"stderr" => Stream::Stderr,
            _ => return Err(ParseLineError::Stream),
        };
        // More tags may follow the first one, separated by colons.
        let (tags, text) = word(rest).ok_or(ParseLineError::Tag)?;
        let partial = tags.split(|byte| *byte == b':').next() == Some(b"P");
        Ok(Line { time, time_text, stream, partial, text })
    }

    /// Formats the time with nine fractional digits, as for `--timestamps`.
    #[must_use]
    pub fn shown_time(&self) -> String {
        let (seconds, rest) = self.time_text.split_at_checked(19).unwrap_or((self.time_text, ""));
        let zone = rest.find(['Z', '+', '-']).map_or("Z", |at| &rest[at..]);
        format!("{seconds}.{:09}{zone}", self.time.nanos())
    }
}

/// Splits at the next blank.
fn word(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = text.iter().position(|byte| *byte == b' ')?;
    Some((&text[..end], &text[end + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_parsed_with_time_stream_and_partial_tag() {
        for (text, stream, partial, content, time) in [
            (
                "2016-10-06T00:17:09.6697942Z stdout F a b ",
                Stream::Stdout,
                false,
                "a b ",
                "2016-10-06T00:17:09.669794200Z",
            ),
            (
                "2016-10-06T00:17:09+02:00 stderr P:x y",
                Stream::Stderr,
                true,
                "y",
                "2016-10-06T00:17:09.000000000+02:00",
            ),
            (
                "2016-10-06T00:17:09Z stdout F ",
                Stream::Stdout,
                false,
                "",
                "2016-10-06T00:17:09.000000000Z",
            ),
        ] {
            let line = Line::parse(text.as_bytes()).unwrap();
            let found = (line.stream, line.partial, line.text, line.shown_time());
            assert_eq!(found, (stream, partial, content.as_bytes(), time.to_owned()), "{text}");
        }
    }

    #[test]
    fn parsing_never_panics_on_mutated_lines() {
        let good = b"2016-10-06T00:17:09.6697942+02:00 stdout P:x \xc3\xbc b";
        for length in 0..good.len() {
            for byte in 0..=255 {
                let mut odd = good.to_vec();
                odd[length] = byte;
                for text in [&odd[..], &odd[..=length], &odd[length..]] {
                    if let Ok(line) = Line::parse(text) {
                        let shown = line.shown_time();
                        assert_eq!(Timestamp::parse(&shown), Ok(line.time), "{shown}");
                    }
                }
            }
        }
    }

    #[test]
    fn invalid_lines_are_rejected() {
        for (text, error) in [
            (&b""[..], ParseLineError::Time),
            (b"yesterday stdout F x", ParseLineError::Time),
            (b"\xff\xff stdout F x", ParseLineError::Time),
            (b"2016-10-06T00:17:09Z", ParseLineError::Time),
            (b"2016-10-06T00:17:09Z stdin F x", ParseLineError::Stream),
            (b"2016-10-06T00:17:09Z stdout", ParseLineError::Stream),
            (b"2016-10-06T00:17:09Z stdout F", ParseLineError::Tag),
        ] {
            assert_eq!(Line::parse(text), Err(error), "{}", text.escape_ascii());
        }
    }
}
