//! One line of a log in the CRI's format: [`Line`]. Text to value; reads no file.
//!
//! ```text
//! 2016-10-06T00:17:09.669794202Z stdout P the beginning of a line that was too long
//! 2016-10-06T00:17:09.669794203Z stdout F  and its end
//! ```

use objects::timestamp::Timestamp;
use thiserror::Error;

/// Where a container wrote it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
}

/// A line that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line<'a> {
    pub time: Timestamp,
    /// The time as it is written.
    time_text: &'a str,
    pub stream: Stream,
    /// The line goes on in the next one.
    pub partial: bool,
    /// What the container wrote, without an end of line.
    pub text: &'a [u8],
}

/// A line that no runtime writes.
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
    /// Reads a line, given without its end.
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

    /// The time with all nine digits, as `--timestamps` shows it.
    #[must_use]
    pub fn shown_time(&self) -> String {
        let (seconds, rest) = self.time_text.split_at_checked(19).unwrap_or((self.time_text, ""));
        let zone = rest.find(['Z', '+', '-']).map_or("Z", |at| &rest[at..]);
        format!("{seconds}.{:09}{zone}", self.time.nanos())
    }
}

/// Up to the next blank, and what follows it.
fn word(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = text.iter().position(|byte| *byte == b' ')?;
    Some((&text[..end], &text[end + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_with_their_time_stream_and_whether_they_go_on() {
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
    fn no_text_is_too_odd_to_be_read_or_refused() {
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
    fn what_no_runtime_writes_is_refused() {
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
