//! Go's error messages for text that is not JSON.
//!
//! serde parses; this is used only for the message about a text that was rejected.

/// The state of the parser.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Expect {
    Value,
    ValueOrEnd,
    KeyOrEnd,
    Key,
    Colon,
    CommaOrEnd,
}

/// Returns Go's message about a text, or `None` if it is valid JSON.
#[must_use]
pub fn go_error(json: &[u8]) -> Option<String> {
    let mut reader = Reader { json, at: 0 };
    match reader.document() {
        Ok(()) => None,
        Err(Fault::End) => Some("unexpected end of JSON input".to_owned()),
        Err(Fault::Character(context)) => {
            let byte = json.get(reader.at).copied().unwrap_or_default();
            Some(format!("invalid character {} {context}", quoted(byte)))
        }
    }
}

enum Fault {
    End,
    Character(String),
}

struct Reader<'a> {
    json: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn document(&mut self) -> Result<(), Fault> {
        // The open objects and lists, `true` for an object.
        let mut open: Vec<bool> = Vec::new();
        let mut expect = Expect::Value;
        loop {
            self.skip_blanks();
            let Some(byte) = self.peek() else { return Err(Fault::End) };
            expect = match (expect, byte) {
                (Expect::KeyOrEnd, b'}') | (Expect::ValueOrEnd, b']') => {
                    self.at += 1;
                    open.pop();
                    Expect::CommaOrEnd
                }
                (Expect::KeyOrEnd | Expect::Key, b'"') => {
                    self.string()?;
                    Expect::Colon
                }
                (Expect::KeyOrEnd | Expect::Key, _) => {
                    return fault("looking for beginning of object key string");
                }
                (Expect::Colon, b':') => {
                    self.at += 1;
                    Expect::Value
                }
                (Expect::Colon, _) => return fault("after object key"),
                (Expect::CommaOrEnd, byte) => match (open.last(), byte) {
                    (Some(true), b',') => {
                        self.at += 1;
                        Expect::Key
                    }
                    (Some(false), b',') => {
                        self.at += 1;
                        Expect::Value
                    }
                    (Some(true), b'}') | (Some(false), b']') => {
                        self.at += 1;
                        open.pop();
                        Expect::CommaOrEnd
                    }
                    (Some(true), _) => return fault("after object key:value pair"),
                    (Some(false), _) => return fault("after array element"),
                    (None, _) => return fault("after top-level value"),
                },
                (Expect::Value | Expect::ValueOrEnd, b'{') => {
                    self.at += 1;
                    open.push(true);
                    Expect::KeyOrEnd
                }
                (Expect::Value | Expect::ValueOrEnd, b'[') => {
                    self.at += 1;
                    open.push(false);
                    Expect::ValueOrEnd
                }
                (Expect::Value | Expect::ValueOrEnd, _) => {
                    self.scalar()?;
                    Expect::CommaOrEnd
                }
            };
            if expect == Expect::CommaOrEnd && open.is_empty() {
                self.skip_blanks();
                return match self.peek() {
                    None => Ok(()),
                    Some(_) => fault("after top-level value"),
                };
            }
        }
    }

    fn peek(&self) -> Option<u8> {
        self.json.get(self.at).copied()
    }

    fn skip_blanks(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.at += 1;
        }
    }

    fn string(&mut self) -> Result<(), Fault> {
        self.at += 1;
        loop {
            match self.peek().ok_or(Fault::End)? {
                b'"' => {
                    self.at += 1;
                    return Ok(());
                }
                b'\\' => {
                    self.at += 1;
                    match self.peek().ok_or(Fault::End)? {
                        b'b' | b'f' | b'n' | b'r' | b't' | b'\\' | b'/' | b'"' => self.at += 1,
                        b'u' => {
                            self.at += 1;
                            for _ in 0..4 {
                                if !self.peek().ok_or(Fault::End)?.is_ascii_hexdigit() {
                                    return fault("in \\u hexadecimal character escape");
                                }
                                self.at += 1;
                            }
                        }
                        _ => return fault("in string escape code"),
                    }
                }
                0..=0x1f => return fault("in string literal"),
                _ => self.at += 1,
            }
        }
    }

    fn scalar(&mut self) -> Result<(), Fault> {
        match self.peek().ok_or(Fault::End)? {
            b'"' => self.string(),
            b't' => self.word("true"),
            b'f' => self.word("false"),
            b'n' => self.word("null"),
            b'-' => {
                self.at += 1;
                match self.peek().ok_or(Fault::End)? {
                    b'0'..=b'9' => self.number(),
                    _ => fault("in numeric literal"),
                }
            }
            b'0'..=b'9' => self.number(),
            _ => fault("looking for beginning of value"),
        }
    }

    fn word(&mut self, word: &str) -> Result<(), Fault> {
        self.at += 1;
        for expected in word.bytes().skip(1) {
            if self.peek().ok_or(Fault::End)? != expected {
                let expected = char::from(expected);
                return fault(&format!("in literal {word} (expecting '{expected}')"));
            }
            self.at += 1;
        }
        Ok(())
    }

    fn number(&mut self) -> Result<(), Fault> {
        if self.peek() == Some(b'0') {
            self.at += 1;
        } else {
            self.digits();
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            if !self.peek().ok_or(Fault::End)?.is_ascii_digit() {
                return fault("after decimal point in numeric literal");
            }
            self.digits();
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            if !self.peek().ok_or(Fault::End)?.is_ascii_digit() {
                return fault("in exponent of numeric literal");
            }
            self.digits();
        }
        Ok(())
    }

    fn digits(&mut self) {
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
    }
}

fn fault<T>(context: &str) -> Result<T, Fault> {
    Err(Fault::Character(context.to_owned()))
}

/// Quotes a byte as Go does.
fn quoted(byte: u8) -> String {
    match byte {
        b'\'' => r"'\''".to_owned(),
        b'"' => "'\"'".to_owned(),
        b'\\' => r"'\\'".to_owned(),
        b'\n' => r"'\n'".to_owned(),
        b'\t' => r"'\t'".to_owned(),
        b'\r' => r"'\r'".to_owned(),
        0..=0x1f | 0x7f => format!(r"'\x{byte:02x}'"),
        0x80..=0x9f => format!(r"'\u{byte:04x}'"),
        byte => format!("'{}'", char::from(byte)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complaints_are_gos() {
        for (json, expected) in [
            ("", "unexpected end of JSON input"),
            ("   ", "unexpected end of JSON input"),
            ("{", "unexpected end of JSON input"),
            ("{\"a\":1,}", "invalid character '}' looking for beginning of object key string"),
            ("{}x", "invalid character 'x' after top-level value"),
            ("nonsense", "invalid character 'o' in literal null (expecting 'u')"),
            ("{\"a\" 1}", "invalid character '1' after object key"),
            ("[1 2]", "invalid character '2' after array element"),
            ("{\"a\":1 \"b\"}", "invalid character '\"' after object key:value pair"),
            ("[}", "invalid character '}' looking for beginning of value"),
            ("\"a\nb\"", "invalid character '\\n' in string literal"),
            ("\"\\x\"", "invalid character 'x' in string escape code"),
            ("1.x", "invalid character 'x' after decimal point in numeric literal"),
        ] {
            assert_eq!(go_error(json.as_bytes()).as_deref(), Some(expected), "{json:?}");
        }
        for json in ["{}", " [1, -2.5e3, true, null, \"\\u00e4\"] ", "{\"a\":{\"b\":[]}}"] {
            assert_eq!(go_error(json.as_bytes()), None, "{json:?}");
        }
    }
}
