//! File name patterns as Go's `path/filepath` matches them.
//!
//! Main type: [`Pattern`], for one component of a path. `[^a]` negates, `\` escapes, and there are
//! no braces. Expanding patterns over a tree of devices is in [`super::paths`].

use thiserror::Error;

/// The pattern is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("syntax error in pattern")]
pub struct BadPattern;

/// A pattern for a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(Vec<Token>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    /// `*`
    AnyText,
    /// `?`
    AnyChar,
    Char(char),
    Set {
        negated: bool,
        ranges: Vec<(char, char)>,
    },
}

impl Token {
    fn matches(&self, c: char) -> bool {
        match self {
            Token::AnyText => false,
            Token::AnyChar => true,
            Token::Char(own) => *own == c,
            Token::Set { negated, ranges } => {
                ranges.iter().any(|(low, high)| (*low..=*high).contains(&c)) != *negated
            }
        }
    }
}

/// Returns true if a text has a character with a meaning in patterns.
#[must_use]
pub fn has_wildcard(text: &str) -> bool {
    text.contains(['*', '?', '[', '\\'])
}

impl Pattern {
    pub fn parse(text: &str) -> Result<Pattern, BadPattern> {
        let mut tokens = Vec::new();
        let mut rest = text.chars();
        while let Some(c) = rest.next() {
            tokens.push(match c {
                '*' => Token::AnyText,
                '?' => Token::AnyChar,
                '[' => set(&mut rest)?,
                '\\' => Token::Char(rest.next().ok_or(BadPattern)?),
                c => Token::Char(c),
            });
        }
        Ok(Pattern(tokens))
    }

    /// Matches a whole name, in time proportional to both lengths.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        let name: Vec<char> = name.chars().collect();
        let (mut token, mut at) = (0, 0);
        // The last `*` and the end of what it matches so far.
        let mut star: Option<(usize, usize)> = None;
        while at < name.len() {
            match self.0.get(token) {
                Some(Token::AnyText) => {
                    star = Some((token, at));
                    token += 1;
                }
                Some(one) if one.matches(name[at]) => {
                    token += 1;
                    at += 1;
                }
                _ => match &mut star {
                    Some((of, end)) => {
                        *end += 1;
                        (token, at) = (*of + 1, *end);
                    }
                    None => return false,
                },
            }
        }
        self.0[token..].iter().all(|token| *token == Token::AnyText)
    }
}

/// Reads a set up to its `]`. It has at least one range.
fn set(rest: &mut std::str::Chars<'_>) -> Result<Token, BadPattern> {
    let negated = rest.as_str().starts_with('^');
    if negated {
        rest.next();
    }
    let mut ranges = Vec::new();
    loop {
        if !ranges.is_empty() && rest.as_str().starts_with(']') {
            rest.next();
            return Ok(Token::Set { negated, ranges });
        }
        let low = bound(rest)?;
        let high = if rest.as_str().starts_with('-') {
            rest.next();
            bound(rest)?
        } else {
            low
        };
        ranges.push((low, high));
    }
}

fn bound(rest: &mut std::str::Chars<'_>) -> Result<char, BadPattern> {
    let c = match rest.next() {
        None | Some('-' | ']') => return Err(BadPattern),
        Some('\\') => rest.next().ok_or(BadPattern)?,
        Some(c) => c,
    };
    // A set that ends here has no `]`.
    if rest.as_str().is_empty() { Err(BadPattern) } else { Ok(c) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_as_in_go() {
        let check = |pattern: &str, name: &str, expected: bool| {
            let matched = Pattern::parse(pattern).unwrap().matches(name);
            assert_eq!(matched, expected, "{pattern} {name}");
        };
        check("sd[a-z]", "sda", true);
        check("sd[a-z]", "sdaa", false);
        check("sd[^a]", "sda", false);
        check("sd[!a]", "sda", true);
        check("sd[!a]", "sdb", false);
        check("nvme*n1", "nvme10n1", true);
        check("*a*b", "xaxxbab", true);
        check("*a*b", "xaxxba", false);
        check("sd\\a", "sda", true);
        check("{sda,sdb}", "sda", false);
        check("[\\]]", "]", true);
        check("", "x", false);
        check("**", "", true);
    }

    #[test]
    fn malformed_patterns_are_errors() {
        for pattern in ["[", "[]", "[]a]", "[a", "[a-", "[a-]", "[-a]", "a\\", "[\\", "[^]"] {
            assert_eq!(Pattern::parse(pattern), Err(BadPattern), "{pattern}");
        }
    }
}
